//! sluice-connectors
