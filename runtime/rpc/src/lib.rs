//! sluice-rpc
