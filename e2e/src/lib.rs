//! sluice-e2e
