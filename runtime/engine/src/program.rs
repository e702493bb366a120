//! A program: the shape of a job together with what makes its sources, operators and sinks (design §2).
//!
//! Built alike in every process of a job. `graph.vertices[i]` and `vertices[i]` describe the same chain.

use crate::operator::OperatorFactory;
use crate::sink::SinkFactory;
use crate::source::SourceFactory;
use arrow::datatypes::SchemaRef;
use sluice_protocol::OperatorUid;
use sluice_protocol::graph::JobGraph;
use std::sync::Arc;

/// What every process of a job builds from its manifest.
#[derive(Clone)]
pub struct Program {
    /// The shape.
    pub graph: JobGraph,
    /// What runs, by vertex.
    pub vertices: Vec<VertexProgram>,
}

/// A chain.
#[derive(Clone)]
pub struct VertexProgram {
    /// Its source, when it begins with one; else it reads its input edges.
    pub source: Option<(OperatorUid, Arc<dyn SourceFactory>)>,
    /// Its operators in order.
    pub operators: Vec<(OperatorUid, Arc<dyn OperatorFactory>)>,
    /// Its sink, when it ends with one; else it writes to its output edges.
    pub sink: Option<(OperatorUid, Arc<dyn SinkFactory>)>,
    /// The schema of the rows on its output edges.
    pub output_schema: SchemaRef,
}
