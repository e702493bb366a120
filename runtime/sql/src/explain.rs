//! A program in words, for `sluice plan`.

use sluice_engine::program::Program;
use sluice_protocol::graph::Partitioning;
use std::fmt::Write as _;

/// The vertices with their operators and ids, each after where its rows come from.
#[must_use]
pub fn explain(program: &Program) -> String {
    let mut text = String::new();
    for vertex in &program.graph.vertices {
        let _ = writeln!(text, "vertex {} (parallelism {}): {}", vertex.id, vertex.parallelism, vertex.name);
        for edge in program.graph.edges.iter().filter(|edge| edge.to == vertex.id) {
            let _ =
                writeln!(text, "  from vertex {} by {}", edge.from, exchange(program, &edge.partitioning, edge.from));
        }
        for operator in &vertex.operators {
            let _ = writeln!(text, "  {}", operator.description);
            let _ = writeln!(text, "    uid {}, {}", operator.uid, format!("{:?}", operator.kind).to_lowercase());
        }
    }
    text
}

fn exchange(program: &Program, partitioning: &Partitioning, from: sluice_protocol::VertexId) -> String {
    match partitioning {
        Partitioning::Forward => "forward".to_owned(),
        Partitioning::Rebalance => "rebalance".to_owned(),
        Partitioning::Broadcast => "broadcast".to_owned(),
        Partitioning::Hash { keys } => {
            let schema = program.vertices.get(from.0 as usize).map(|vertex| &vertex.output_schema);
            let names: Vec<String> = keys
                .iter()
                .map(|key| match schema.and_then(|schema| schema.fields().get(*key)) {
                    Some(field) => field.name().clone(),
                    None => key.to_string(),
                })
                .collect();
            format!("hash[{}]", names.join(", "))
        }
    }
}
