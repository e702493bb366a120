//! sluice-tests
