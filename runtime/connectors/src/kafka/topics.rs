//! Which topics a table reads: those that are named, or all whose names match a pattern.

use crate::options::Options;
use regex::Regex;
use sluice_engine::table::TableError;
use std::fmt;

/// Topics of the brokers' own, which no pattern means.
const INTERNAL: [&str; 2] = ["__consumer_offsets", "__transaction_state"];

/// What to read.
#[derive(Debug, Clone)]
pub(super) enum Topics {
    /// `topic`.
    Named(Vec<String>),
    /// `topic-pattern`; it matches whole names.
    Pattern(Box<Regex>),
}

/// The option as it was written.
impl fmt::Display for Topics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(topics) => write!(f, "'topic' is '{}'", topics.join(";")),
            Self::Pattern(pattern) => {
                let text = pattern.as_str();
                let text = text.strip_prefix("^(?:").and_then(|text| text.strip_suffix(")$")).unwrap_or(text);
                write!(f, "'topic-pattern' is '{text}'")
            }
        }
    }
}

impl Topics {
    pub(super) fn read(options: &Options<'_>) -> Result<Self, TableError> {
        let Some(pattern) = options.text("topic-pattern") else {
            let named = options.required("topic", "what to read: a topic, or several with ';' between them")?;
            let topics = named.split(';').map(|topic| topic.trim().to_owned()).filter(|topic| !topic.is_empty());
            return Ok(Self::Named(topics.collect()));
        };
        if options.text("topic").is_some() {
            let message = "the options 'topic' and 'topic-pattern' both say what to read; remove one of them";
            return Err(options.error("topic-pattern", message));
        }
        match Regex::new(pattern).and_then(|_| Regex::new(&format!("^(?:{pattern})$"))) {
            Ok(pattern) => Ok(Self::Pattern(Box::new(pattern))),
            Err(_) => Err(options.wrong("topic-pattern", pattern, "a regular expression (of the Rust crate regex)")),
        }
    }

    /// How many there are; a pattern may mean any number.
    pub(super) const fn count(&self) -> Option<usize> {
        match self {
            Self::Named(topics) => Some(topics.len()),
            Self::Pattern(_) => None,
        }
    }

    /// Whether they come and go without anybody naming them.
    pub(super) const fn is_pattern(&self) -> bool {
        matches!(self, Self::Pattern(_))
    }

    /// Whether it is one of them.
    pub(super) fn contain(&self, topic: &str) -> bool {
        match self {
            Self::Named(topics) => topics.iter().any(|named| named == topic),
            Self::Pattern(pattern) => pattern.is_match(topic) && !INTERNAL.contains(&topic),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_whole_names_of_topics_of_users() {
        let topics = Topics::Pattern(Box::new(Regex::new("^(?:a|b.*|__.*)$").unwrap()));
        let found: Vec<&str> = ["a", "ab", "b-1", "xb", "__own", "__consumer_offsets", "__transaction_state"]
            .into_iter()
            .filter(|topic| topics.contain(topic))
            .collect();
        assert_eq!(found, ["a", "b-1", "__own"]);
        assert_eq!(topics.to_string(), "'topic-pattern' is 'a|b.*|__.*'");
    }
}
