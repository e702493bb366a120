//! What the API server checks by itself of a StreamJob: CEL rules, each with the names of the fields that it is about.
//!
//! They say what [`crate::validate()`] says, as far as CEL can: `duration()` knows no days, so what is written in days is
//! left to the controller.

use super::Rule;

pub(super) const STREAM_JOB: &[Rule] = &[
    Rule {
        at: "",
        rule: "size(self.metadata.name) <= 40 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        message: "metadata.name must be at most 40 characters of a-z, 0-9 and '-', start with a letter and end with a \
                  letter or digit: pods and a Service are named after it",
    },
    Rule {
        at: "spec",
        rule: "self.parallelism <= self.maxParallelism",
        message: "parallelism must not be greater than maxParallelism",
    },
    Rule {
        at: "spec/program",
        rule: "has(self.sql) != has(self.sqlFrom)",
        message: "exactly one of sql and sqlFrom must be set",
    },
    Rule {
        at: "spec",
        rule: "!has(self.savepoints) || has(self.checkpointing)",
        message: "savepoints needs checkpointing: without it the job stores no state",
    },
    Rule {
        at: "spec",
        rule: "!has(self.savepoints) || !has(self.checkpointing) || has(self.savepoints.directory) || \
               has(self.checkpointing.savepointStorage) || self.checkpointing.storage != 'JobManager'",
        message: "savepoints needs savepoints.directory or checkpointing.savepointStorage where checkpointing.storage is \
                  JobManager: a savepoint would not outlive the job",
    },
    Rule {
        at: "spec/savepoints",
        rule: "has(self.interval) != has(self.schedule)",
        message: "exactly one of interval and schedule must be set",
    },
    Rule {
        at: "spec/savepoints",
        rule: "(!has(self.interval) || self.interval.matches('[1-9]')) && self.timeout.matches('[1-9]')",
        message: "savepoints.interval and savepoints.timeout must be longer than 0s",
    },
    Rule {
        at: "spec/savepoints/historyLimit",
        rule: "!has(self.age) || self.age.matches('[1-9]')",
        message: "historyLimit.age must be longer than 0s: remove it to keep savepoints of any age",
    },
    Rule {
        at: "spec/restartStrategy",
        rule: "[has(self.fixedDelay), has(self.failureRate), has(self.exponentialDelay), has(self.none)]\
               .filter(x, x).size() == 1",
        message: "exactly one of fixedDelay, failureRate, exponentialDelay and none must be set",
    },
    Rule {
        at: "spec/restartStrategy/failureRate",
        rule: "self.interval.matches('[1-9]')",
        message: "failureRate.interval must be longer than 0s",
    },
    Rule {
        at: "spec/restartStrategy/exponentialDelay",
        rule: "self.initialBackoff.contains('d') || self.maxBackoff.contains('d') || \
               duration(self.initialBackoff) <= duration(self.maxBackoff)",
        message: "exponentialDelay.maxBackoff must not be shorter than initialBackoff",
    },
    Rule {
        at: "spec/restartStrategy/exponentialDelay",
        rule: "self.maxBackoff.contains('d') || self.resetAfter.contains('d') || \
               duration(self.maxBackoff) < duration(self.resetAfter)",
        message: "exponentialDelay.resetAfter must be longer than maxBackoff",
    },
    Rule {
        at: "spec/checkpointing",
        rule: "self.interval.matches('[1-9]') && self.timeout.matches('[1-9]')",
        message: "checkpointing.interval and checkpointing.timeout must be longer than 0s",
    },
    Rule {
        at: "spec/checkpointing",
        rule: "!self.unaligned || self.mode == 'ExactlyOnce'",
        message: "unaligned needs mode ExactlyOnce: with AtLeastOnce no channel waits for a barrier",
    },
    Rule {
        at: "spec/checkpointing",
        rule: "!self.unaligned || self.maxConcurrent == 1 || self.minPause.matches('[1-9]')",
        message: "unaligned needs maxConcurrent 1: rows that one barrier has overtaken cannot be in two checkpoints",
    },
    Rule {
        at: "spec/checkpointing",
        rule: "self.unaligned || !self.alignmentTimeout.matches('[1-9]')",
        message: "alignmentTimeout needs unaligned: without it no barrier ever overtakes",
    },
    Rule {
        at: "spec/checkpointing/tolerableFailures",
        rule: "type(self) == int ? self >= 0 : self == 'Unlimited'",
        message: "tolerableFailures is a number from 0, or Unlimited",
    },
    Rule {
        at: "spec/checkpointing",
        rule: "!has(self.storageOptions) || self.storage.startsWith('s3://') || (has(self.savepointStorage) && \
               self.savepointStorage.startsWith('s3://'))",
        message: "storageOptions apply to s3:// only: to storage or savepointStorage",
    },
    Rule {
        at: "spec/upgrade",
        rule: "!has(self.savepointTimeout) || self.savepointTimeout.matches('[1-9]')",
        message: "upgrade.savepointTimeout must be longer than 0s: remove it for checkpointing.timeout",
    },
    Rule {
        at: "spec/stability",
        rule: "!has(self.deadline) || self.deadline.contains('d') || self.duration.contains('d') || \
               duration(self.deadline) > duration(self.duration)",
        message: "stability.deadline must be longer than stability.duration: no revision could be stable in time",
    },
    Rule {
        at: "spec/taskManager",
        rule: "self.heartbeatTimeout.matches('[1-9]')",
        message: "taskManager.heartbeatTimeout must be longer than 0s",
    },
];

/// What rules look at with `has`: it must not be null.
pub(super) const NOT_NULL: &[&str] = &[
    "spec/program/sql",
    "spec/program/sqlFrom",
    "spec/restartStrategy/fixedDelay",
    "spec/restartStrategy/failureRate",
    "spec/restartStrategy/exponentialDelay",
    "spec/restartStrategy/none",
    "spec/checkpointing/storageOptions",
    "spec/checkpointing/savepointStorage",
    "spec/checkpointing",
    "spec/savepoints",
    "spec/savepoints/interval",
    "spec/savepoints/schedule",
    "spec/savepoints/directory",
    "spec/savepoints/historyLimit/age",
    "spec/upgrade/savepointTimeout",
    "spec/stability/deadline",
];
