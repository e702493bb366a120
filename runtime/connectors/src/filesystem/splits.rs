//! Which files there are, how they are divided into splits, and what a split remembers.
//!
//! A split is a whole file of Parquet or CSV, or a range of at most [`RANGE`] bytes of another file of lines, named by where it begins:
//! `a/b.json@67108864`. So all subtasks find the same ones, and a file that grows after it was found is not read again.

use super::options::{FileFormat, FileOptions};
use crate::format::Format;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use serde::{Deserialize, Serialize};
use sluice_protocol::state::SplitState;
use sluice_storage::{ObjectStore, StoreFailure};

/// Most bytes of a file of lines that one split covers.
pub(super) const RANGE: u64 = 64 << 20;

/// Sizes that are asked for at once.
const HEADS: usize = 32;

/// A split's place in the input and how far it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Split {
    pub(super) file: String,
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) progress: Progress,
}

/// What is stored of a split.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Progress {
    /// Of lines: the byte at which the next line begins. Of Parquet: how many rows were read.
    pub(super) position: Option<u64>,
    pub(super) finished: bool,
}

/// As it is stored.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    position: Option<u64>,
    end: u64,
    finished: bool,
}

impl Split {
    pub(super) fn name(&self) -> String {
        format!("{}@{}", self.file, self.start)
    }

    /// From a checkpoint.
    pub(super) fn restored(state: &SplitState) -> Option<Self> {
        let (file, start) = state.split.rsplit_once('@')?;
        let Stored { position, end, finished } = serde_json::from_value(state.state.clone()).ok()?;
        let progress = Progress { position, finished };
        Some(Self { file: file.to_owned(), start: start.parse().ok()?, end, progress })
    }

    pub(super) fn state(&self) -> SplitState {
        let Progress { position, finished } = self.progress;
        let state = serde_json::json!({ "position": position, "end": self.end, "finished": finished });
        SplitState { split: self.name(), state }
    }
}

/// The splits of a file.
pub(super) fn divide(file: &str, size: u64, format: &FileFormat) -> Vec<Split> {
    let ranges: Vec<(u64, u64)> = match format {
        // A line of CSV may end within quotes: where one begins is known only from the beginning.
        FileFormat::Parquet | FileFormat::Lines(Format::Csv(_)) => vec![(0, size)],
        FileFormat::Lines(_) => (0..size.div_ceil(RANGE)).map(|n| (n * RANGE, size.min((n + 1) * RANGE))).collect(),
    };
    let split = |(start, end)| Split { file: file.to_owned(), start, end, progress: Progress::default() };
    ranges.into_iter().map(split).collect()
}

/// Whether readers see it: what is hidden or being written is not.
fn is_visible(key: &str) -> bool {
    !key.split('/').any(|segment| segment.starts_with('.') || segment.starts_with('_')) && !key.ends_with(".inprogress")
}

/// All files below the directory, with their sizes. One that vanishes meanwhile was never there.
async fn list(store: &dyn ObjectStore) -> Result<Vec<(String, u64)>, StoreFailure> {
    let keys = store.list("", None).await?.into_iter().filter(|key| is_visible(key));
    let sized = keys.map(async |key| Ok(store.head(&key).await?.filter(|size| *size > 0).map(|size| (key, size))));
    let files: Vec<Option<(String, u64)>> = stream::iter(sized).buffered(HEADS).try_collect().await?;
    Ok(files.into_iter().flatten().collect())
}

/// The splits of all files of a table.
pub(super) async fn find(store: &dyn ObjectStore, options: &FileOptions) -> Result<Vec<Split>, StoreFailure> {
    let files = list(store).await?;
    Ok(files.iter().flat_map(|(file, size)| divide(file, *size, &options.format)).collect())
}
