//! Puts a program together: chains of operators become vertices, and edges run between them.
//!
//! Chains are closed from the sources down, so that vertices come out in topological order. Ids of operators are
//! unique over the whole program: the second use of one is refused.

use crate::uid::Uids;
use arrow::datatypes::SchemaRef;
use sluice_engine::operator::OperatorFactory;
use sluice_engine::program::{Program, VertexProgram};
use sluice_engine::sink::SinkFactory;
use sluice_engine::source::SourceFactory;
use sluice_protocol::graph::{Edge, JobGraph, OperatorInfo, OperatorKind, Partitioning, Vertex};
use sluice_protocol::{OperatorUid, VertexId};
use std::collections::BTreeSet;
use std::sync::Arc;

/// A program under construction.
#[derive(Default)]
pub(crate) struct GraphBuilder {
    vertices: Vec<Vertex>,
    programs: Vec<VertexProgram>,
    edges: Vec<Edge>,
    uids: BTreeSet<OperatorUid>,
}

/// Where rows come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Upstream {
    vertex: VertexId,
}

/// An edge into a chain.
struct Input {
    from: Upstream,
    partitioning: Partitioning,
    /// 0: the first or only input of the chain's first operator.
    number: u8,
}

/// The second use of an operator's id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UidClash(pub(crate) OperatorUid);

/// A chain that still grows at its end.
pub(crate) struct Chain {
    names: Vec<String>,
    infos: Vec<OperatorInfo>,
    source: Option<(OperatorUid, Arc<dyn SourceFactory>)>,
    operators: Vec<(OperatorUid, Arc<dyn OperatorFactory>)>,
    sink: Option<(OperatorUid, Arc<dyn SinkFactory>)>,
    inputs: Vec<Input>,
    parallelism: u32,
    /// It has one subtask whatever the job's parallelism.
    is_single: bool,
    schema: SchemaRef,
}

impl Chain {
    /// Begins with a source.
    pub(crate) fn from_source(
        info: OperatorInfo,
        name: String,
        factory: Arc<dyn SourceFactory>,
        parallelism: u32,
        schema: SchemaRef,
    ) -> Self {
        let source = Some((info.uid.clone(), factory));
        let (names, infos) = (vec![name], vec![info]);
        Self {
            names,
            infos,
            source,
            operators: Vec::new(),
            sink: None,
            inputs: Vec::new(),
            parallelism,
            is_single: false,
            schema,
        }
    }

    /// Begins after an exchange.
    pub(crate) fn from_edge(
        from: Vec<Upstream>,
        partitioning: Partitioning,
        parallelism: u32,
        schema: SchemaRef,
    ) -> Self {
        Self::union(vec![(from, partitioning)], parallelism, schema)
    }

    /// Begins after several exchanges, whose rows have the same columns.
    pub(crate) fn union(inputs: Vec<(Vec<Upstream>, Partitioning)>, parallelism: u32, schema: SchemaRef) -> Self {
        Self::from_inputs(inputs.into_iter().map(|(from, partitioning)| (from, partitioning, 0)), parallelism, schema)
    }

    /// Begins with an operator that tells its left input from its right one.
    pub(crate) fn from_two(
        [left, right]: [(Vec<Upstream>, Partitioning); 2],
        parallelism: u32,
        schema: SchemaRef,
    ) -> Self {
        Self::from_inputs([(left.0, left.1, 0), (right.0, right.1, 1)].into_iter(), parallelism, schema)
    }

    fn from_inputs(
        inputs: impl Iterator<Item = (Vec<Upstream>, Partitioning, u8)>,
        parallelism: u32,
        schema: SchemaRef,
    ) -> Self {
        let inputs = inputs.flat_map(|(from, partitioning, number)| {
            from.into_iter().map(move |from| Input { from, partitioning: partitioning.clone(), number })
        });
        Self {
            names: Vec::new(),
            infos: Vec::new(),
            source: None,
            operators: Vec::new(),
            sink: None,
            inputs: inputs.collect(),
            parallelism,
            is_single: false,
            schema,
        }
    }

    /// The chain with one subtask whatever the job's parallelism.
    pub(crate) fn single(self) -> Self {
        Self { is_single: true, parallelism: 1, ..self }
    }

    /// Whether it has one subtask whatever the job's parallelism.
    pub(crate) const fn is_single(&self) -> bool {
        self.is_single
    }

    /// Whether it only passes on what comes in: then what comes next can read the inputs itself.
    fn is_empty(&self) -> bool {
        self.infos.is_empty() && self.inputs.iter().all(|input| input.partitioning == Partitioning::Forward)
    }

    /// Whether it exchanges rows without an operator that takes them: a vertex needs one.
    pub(crate) fn lacks_operator(&self) -> bool {
        self.infos.is_empty() && !self.is_empty()
    }

    /// Adds an operator.
    pub(crate) fn push(&mut self, info: OperatorInfo, name: &str, factory: Arc<dyn OperatorFactory>) {
        self.schema = factory.output_schema();
        self.operators.push((info.uid.clone(), factory));
        self.names.push(name.to_owned());
        self.infos.push(info);
    }

    /// Ends with a sink.
    pub(crate) fn end_with(&mut self, info: OperatorInfo, name: String, factory: Arc<dyn SinkFactory>) {
        self.sink = Some((info.uid.clone(), factory));
        self.names.push(name);
        self.infos.push(info);
    }

    /// What comes out at its end.
    pub(crate) const fn schema(&self) -> &SchemaRef {
        &self.schema
    }
}

impl GraphBuilder {
    /// Makes a chain a vertex, or nothing of one without operators; returns where its rows come from.
    pub(crate) fn close(&mut self, chain: Chain) -> Result<Vec<Upstream>, UidClash> {
        if chain.is_empty() {
            return Ok(chain.inputs.into_iter().map(|input| input.from).collect());
        }
        for info in &chain.infos {
            if !self.uids.insert(info.uid.clone()) {
                return Err(UidClash(info.uid.clone()));
            }
        }
        let id = VertexId(u32::try_from(self.vertices.len()).unwrap_or(u32::MAX));
        self.edges.extend(chain.inputs.into_iter().map(|input| Edge {
            from: input.from.vertex,
            to: id,
            partitioning: input.partitioning,
            input: input.number,
        }));
        let name = chain.names.join(" -> ");
        self.vertices.push(Vertex { id, name, parallelism: chain.parallelism, operators: chain.infos });
        self.programs.push(VertexProgram {
            source: chain.source,
            operators: chain.operators,
            sink: chain.sink,
            output_schema: chain.schema,
        });
        Ok(vec![Upstream { vertex: id }])
    }

    /// All vertices are there.
    pub(crate) fn finish(mut self, max_parallelism: u16) -> Program {
        self.edges.sort_by_key(|edge| (edge.from, edge.to, edge.input));
        let graph = JobGraph { vertices: self.vertices, edges: self.edges, max_parallelism };
        Program { graph, vertices: self.programs }
    }
}

/// What a stateless operator is called, by its place.
pub(crate) fn calc_info(uids: &Uids, number: usize, description: String) -> OperatorInfo {
    let description = format!("Calc({description})");
    OperatorInfo { uid: uids.calc(number), kind: OperatorKind::Stateless, description }
}
