//! sluice-test-s3
