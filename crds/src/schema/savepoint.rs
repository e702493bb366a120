//! What the schema of a Savepoint says beyond its types.

use super::{Adjustments, Rule};
use serde_json::json;

const RULES: &[Rule] = &[
    Rule {
        at: "spec",
        rule: "self.job == oldSelf.job",
        message: "job cannot be changed: make another Savepoint for another StreamJob",
    },
    Rule { at: "spec", rule: "self.kind == oldSelf.kind", message: "kind cannot be changed: make another Savepoint" },
    Rule {
        at: "spec",
        rule: "has(self.directory) == has(oldSelf.directory) && (!has(self.directory) || self.directory == \
               oldSelf.directory)",
        message: "directory cannot be changed: make another Savepoint",
    },
    Rule {
        at: "spec",
        rule: "self.timeout == oldSelf.timeout && self.backoffLimit == oldSelf.backoffLimit",
        message: "timeout and backoffLimit cannot be changed: make another Savepoint",
    },
    Rule { at: "spec", rule: "self.timeout.matches('[1-9]')", message: "timeout must be longer than 0s" },
    Rule {
        at: "spec",
        rule: "self.kind == 'Savepoint' || !has(self.directory)",
        message: "directory applies to kind Savepoint only: a checkpoint goes where the job's checkpoints go; remove \
                  directory, or set kind to Savepoint",
    },
    Rule {
        at: "spec",
        rule: "self.kind == 'Savepoint' || !self.disposeOnDelete",
        message: "disposeOnDelete applies to kind Savepoint only: the job keeps and removes its checkpoints itself; remove \
                  disposeOnDelete, or set kind to Savepoint",
    },
];

pub(super) fn adjustments() -> Adjustments {
    Adjustments {
        replacements: vec![],
        keywords: vec![
            ("spec/job", json!({"minLength": 1, "maxLength": 40})),
            ("spec/directory", json!({"pattern": "^(file:///.+|s3://[^/]+(/.*)?)$"})),
            ("spec/backoffLimit", json!({"maximum": 100})),
        ],
        rules: RULES,
        not_null: &["spec/directory"],
        scale: None,
    }
}
