//! Lines about what goes wrong in a local job, as it happens: whoever looks at standard error, on a terminal or in a
//! log, must not have to ask the status page why nothing goes on.
//!
//! Pure: shown each status, it answers with what is new in it.

use sluice_protocol::Timestamp;
use sluice_protocol::failure::FailureRecord;
use sluice_protocol::status::{JobStatus, Notice};
use std::collections::HashMap;

/// The same kind of trouble, differently worded (another checkpoint, another file), is told again after so many
/// milliseconds.
const AGAIN_MS: u64 = 10_000;

/// What was told of a job.
#[derive(Default)]
pub(crate) struct Narrator {
    /// Time of the last failure that was told.
    failure: Option<Timestamp>,
    /// By reason: the last message, and when.
    notices: HashMap<String, (String, Timestamp)>,
}

impl Narrator {
    /// What this status says that was not told yet.
    pub(crate) fn news(&mut self, status: &JobStatus, now: Timestamp) -> Vec<String> {
        let failures = status.failures.iter().rev().filter(|record| Some(record.at) > self.failure);
        let mut lines: Vec<String> = failures.map(told_failure).collect();
        self.failure = self.failure.max(status.failures.first().map(|record| record.at));
        lines.extend(status.notices.iter().filter_map(|notice| self.told_notice(notice, now)));
        lines
    }

    fn told_notice(&mut self, notice: &Notice, now: Timestamp) -> Option<String> {
        if let Some((message, at)) = self.notices.get(&notice.reason)
            && (*message == notice.message || now.since(*at).0 < AGAIN_MS)
        {
            return None;
        }
        self.notices.insert(notice.reason.clone(), (notice.message.clone(), now));
        Some(format!("warning: {}", notice.message))
    }
}

fn told_failure(record: &FailureRecord) -> String {
    format!("warning: attempt {} failed: {}", record.run.attempt.0, record.failure.message)
}

#[cfg(test)]
mod tests {
    use super::Narrator;
    use sluice_protocol::failure::{Failure, FailureRecord, Fault};
    use sluice_protocol::status::{JobStatus, Notice};
    use sluice_protocol::{Attempt, Generation, Run, Timestamp};

    fn notice(message: &str) -> Notice {
        Notice { reason: "CheckpointFailed".to_owned(), message: message.to_owned() }
    }

    fn failure(attempt: u32, message: &str) -> FailureRecord {
        FailureRecord {
            at: Timestamp(u64::from(attempt) * 1000),
            run: Run { generation: Generation(1), attempt: Attempt(attempt) },
            task_manager: None,
            subtask: None,
            failure: Failure::restart("Lost", Fault::External, message.to_owned()),
        }
    }

    #[test]
    fn each_failure_and_each_notice_is_told_once() {
        let mut narrator = Narrator::default();
        let mut status = JobStatus { failures: vec![failure(1, "no space")], ..JobStatus::default() };
        status.notices.push(notice("checkpoint 2 failed"));
        let told = narrator.news(&status, Timestamp(0));
        assert_eq!(told, ["warning: attempt 1 failed: no space", "warning: checkpoint 2 failed"]);
        assert!(narrator.news(&status, Timestamp(60_000)).is_empty());
        status.failures.insert(0, failure(2, "no space either"));
        assert_eq!(narrator.news(&status, Timestamp(60_000)), ["warning: attempt 2 failed: no space either"]);
    }

    #[test]
    fn the_same_trouble_in_other_words_is_told_every_ten_seconds() {
        let mut narrator = Narrator::default();
        let status = |id: u64| JobStatus { notices: vec![notice(&format!("{id} failed"))], ..JobStatus::default() };
        let told = |id: u64| narrator.news(&status(id), Timestamp(id * 1000)).len();
        assert_eq!((0..25).map(told).sum::<usize>(), 3);
    }
}
