//! Labels and the port by which a job's pods are found and reached, for the controller that makes them and for whoever looks.

/// Which StreamJob an object belongs to.
pub const JOB_LABEL: &str = "sluice.dev/job";
/// On pods whose processes speak mTLS: those that an older controller made do not.
pub const TLS_LABEL: &str = "sluice.dev/tls";
/// `jobmanager` or `taskmanager`: the pod's part, and its main container.
pub const COMPONENT_LABEL: &str = "app.kubernetes.io/component";
/// The JobManager's gRPC port.
pub const RPC_PORT: u16 = 6123;
