//! sluice-storage
