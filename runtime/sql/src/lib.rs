//! sluice-sql
