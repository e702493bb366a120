//! sluice-node
