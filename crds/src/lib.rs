//! sluice-crds
