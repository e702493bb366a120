//! The charts: linted, and rendered with the values that users get when they set none and with those that change most.

use std::process::Command;

use anyhow::{Result, ensure};

use crate::{process, workspace};

const CHART: &str = "charts/sluice";

/// Values, and what the rendered text must and must not hold.
struct Case {
    values: &'static [&'static str],
    holds: &'static [&'static str],
    lacks: &'static [&'static str],
}

const CASES: [Case; 7] = [
    Case {
        values: &[],
        holds: &[
            "replicas: 2",
            "--lease=default/test-sluice",
            "kind: ClusterRole\n",
            "kind: NetworkPolicy",
            "kind: PodDisruptionBudget",
            "readOnlyRootFilesystem: true",
            "capabilities: {drop: [ALL]}",
            "seccompProfile: {type: RuntimeDefault}",
            "topologyKey: kubernetes.io/hostname",
            "resourceNames: [test-sluice]",
        ],
        lacks: &["--namespaces", "kind: ServiceMonitor", "kind: PrometheusRule", "grafana", "priorityClassName"],
    },
    Case {
        values: &["watchNamespaces={streams,other,streams}"],
        holds: &["--namespaces=streams,other", "kind: Role\nmetadata:\n  name: test-sluice\n  namespace: other\n"],
        lacks: &["ClusterRole"],
    },
    Case {
        values: &["watchNamespaces={streams,other,streams}", "jobNetworkPolicy.enabled=true"],
        holds: &[
            "name: test-sluice-jobs\n  namespace: streams\n",
            "name: test-sluice-jobs\n  namespace: other\n",
            "kubernetes.io/metadata.name: default",
        ],
        lacks: &["port: 8081, protocol: TCP}]\n      from:"],
    },
    Case {
        values: &[
            "watchNamespaces={streams}",
            "jobNetworkPolicy.enabled=true",
            "jobNetworkPolicy.statusFrom[0].namespaceSelector.matchLabels.a=b",
            "jobNetworkPolicy.commandFrom[0].podSelector.matchLabels.c=d",
        ],
        holds: &["    - ports: [{port: 8081, protocol: TCP}]\n      from:\n", "a: b", "c: d"],
        lacks: &[],
    },
    Case {
        values: &["serviceMonitor.enabled=true", "prometheusRule.enabled=true", "dashboard.enabled=true"],
        holds: &[
            "kind: ServiceMonitor",
            "kind: PrometheusRule",
            "absent(sluice_controller_leader{namespace=\"default\"} == 1)",
            "grafana_dashboard: \"1\"",
            "{{ $labels.kind }}",
            "\"title\": \"Sluice controller\"",
        ],
        lacks: &[],
    },
    Case {
        values: &["networkPolicy.enabled=false", "podDisruptionBudget.enabled=false", "rbac.create=false"],
        holds: &["kind: Deployment"],
        lacks: &["kind: NetworkPolicy", "kind: PodDisruptionBudget", "Role"],
    },
    Case {
        values: &["priorityClassName=high", "image.tag=1.2.3", "topologySpreadConstraints[0].topologyKey=zone"],
        holds: &["priorityClassName: high", "image: sluice/controller:1.2.3", "topologyKey: zone"],
        lacks: &["kubernetes.io/hostname"],
    },
];

/// Values that the schema refuses, and a word of why.
const REFUSED: [(&str, &str); 4] = [
    ("replica=3", "replica"),
    ("replicas=0", "replicas"),
    ("image.pullPolicy=Maybe", "pullPolicy"),
    ("jobNetworkPolicy.enabled=true", "watchNamespaces"),
];

/// Lints and renders.
pub(super) fn run() -> Result<()> {
    let helm = process::output(workspace::script("e2e/testbed/helm.sh"))?;
    let helm = |verb: &[&str], chart: &str, values: &[&str]| {
        let mut command = Command::new(helm.trim());
        command.args(verb).arg(workspace::root().join(chart));
        command.args(values.iter().flat_map(|value| ["--set", value]));
        process::output(command)
    };
    for chart in ["charts/sluice-crds", CHART] {
        println!("{}", helm(&["lint", "--strict"], chart, &[])?.trim());
        helm(&["template", "test"], chart, &[])?;
    }
    for Case { values, holds, lacks } in CASES {
        let text = helm(&["template", "test"], CHART, values)?;
        for word in holds {
            ensure!(text.contains(word), "{CHART} with {values:?} lacks {word:?}");
        }
        for word in lacks {
            ensure!(!text.contains(word), "{CHART} with {values:?} holds {word:?}");
        }
    }
    for (value, why) in REFUSED {
        let refusal = helm(&["template", "test"], CHART, &[value]).err().map(|error| format!("{error:#}"));
        ensure!(refusal.is_some_and(|refusal| refusal.contains(why)), "{CHART} takes --set {value}");
    }
    println!("{} cases rendered, {} refused", CASES.len(), REFUSED.len());
    Ok(())
}
