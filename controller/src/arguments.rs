//! The command line of the controller.

use clap::Parser;
use std::io::IsTerminal;
use std::net::SocketAddr;
use tracing_subscriber::EnvFilter;

const EXAMPLES: &str = "\
Examples:
  # In a cluster, all namespaces (what the chart does):
  sluice-controller --runtime-image sluice/runtime:0.1.0
  # From a workstation, one namespace, no other replica, with the kubeconfig of KUBECONFIG or ~/.kube/config:
  sluice-controller --runtime-image sluice/runtime:0.1.0 --namespaces streams --listen 127.0.0.1:8080
  # More words:
  RUST_LOG=sluice_controller=debug sluice-controller --runtime-image sluice/runtime:0.1.0

It serves /metrics, /healthz and /readyz at the address of --listen.";

/// Runs StreamJobs: keeps their pods what the spec asks for and their status what is true.
#[derive(Debug, Clone, Parser)]
#[command(name = "sluice-controller", version, after_help = EXAMPLES)]
pub struct Arguments {
    /// Image of the job pods of StreamJobs whose spec names none
    #[arg(long, env = "SLUICE_RUNTIME_IMAGE", value_name = "IMAGE")]
    pub runtime_image: String,
    /// Only StreamJobs of these namespaces; all namespaces when absent
    #[arg(long, env = "SLUICE_NAMESPACES", value_name = "NAME,NAME…", value_delimiter = ',')]
    pub namespaces: Vec<String>,
    /// Elect a leader among replicas by the Lease sluice-controller of this namespace, or by NAMESPACE/NAME; without it
    /// this process takes itself for the only one
    #[arg(long, env = "SLUICE_LEASE", value_name = "NAMESPACE[/NAME]")]
    pub lease: Option<String>,
    /// Address of /metrics, /healthz and /readyz
    #[arg(long, env = "SLUICE_LISTEN", value_name = "HOST:PORT", default_value = "0.0.0.0:8080")]
    pub listen: SocketAddr,
    /// Name of this process in events: its pod
    #[arg(long, env = "POD_NAME", value_name = "NAME", hide = true)]
    pub pod_name: Option<String>,
    /// Log lines as JSON
    #[arg(long, env = "SLUICE_LOG_JSON")]
    pub log_json: bool,
}

impl Arguments {
    /// Namespace and name of the Lease.
    #[must_use]
    pub fn lease(&self) -> Option<(&str, &str)> {
        let lease = self.lease.as_deref().filter(|lease| !lease.is_empty())?;
        Some(lease.split_once('/').unwrap_or((lease, "sluice-controller")))
    }

    /// Logs to standard error, at level info unless RUST_LOG says otherwise.
    pub fn start_logging(&self) {
        let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
        let colours = std::io::stderr().is_terminal();
        let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colours);
        if self.log_json { logs.json().init() } else { logs.init() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound_and_explains_itself() {
        Arguments::command().debug_assert();
        let help = Arguments::command().render_help().to_string();
        assert!(help.contains("Examples:") && help.contains("--runtime-image"), "{help}");
    }

    /// Help shows the values of environment variables: none may be a credential.
    #[test]
    fn help_shows_no_credential() {
        let command = Arguments::command();
        let shown = command.get_arguments().filter(|argument| !argument.is_hide_env_values_set());
        for name in shown.filter_map(clap::Arg::get_env).map(|name| name.to_string_lossy().into_owned()) {
            let words = ["SECRET", "PASSWORD", "TOKEN", "CREDENTIAL", "_KEY"];
            assert!(!words.iter().any(|word| name.contains(word)), "{name} needs hide_env_values");
        }
    }
}
