//! What is wrong with SQL text, and where.
//!
//! Every error of this crate is an [`SqlError`]: it carries the place in the user's text, and its `Display` shows
//! that line with a caret under the place. [`SourceText`] makes them; nothing else in the crate counts lines.

use crate::dialect::DIALECT;
use datafusion_sql::sqlparser::parser::ParserError;
use datafusion_sql::sqlparser::tokenizer::{Location, Token, TokenWithSpan, Tokenizer};
use sluice_protocol::failure::{Failure, Fault, Retry};
use std::fmt;

/// What kind of mistake it is; the name is the event reason and the metric label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SqlErrorKind {
    /// The text is not SQL.
    Syntax,
    /// It is SQL that Sluice does not run yet.
    Unsupported,
    /// A table that no CREATE TABLE declares.
    UnknownTable,
    /// A column that the table does not have.
    UnknownColumn,
    /// A type that does not exist.
    UnknownType,
    /// A function that does not exist.
    UnknownFunction,
    /// A hint that does not exist or is malformed.
    Hint,
    /// Something is declared twice.
    Duplicate,
    /// Types that do not fit.
    Type,
    /// A statement that contradicts itself or its tables.
    Invalid,
    /// A connector refuses the table.
    Connector,
    /// The sink cannot take the query's changes.
    Changelog,
    /// A broken promise of ours.
    Internal,
}

/// A mistake in SQL text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SqlError {
    /// What kind it is.
    pub kind: SqlErrorKind,
    /// What is wrong, what was expected, and what to do; without the place.
    pub message: String,
    /// Line, from 1; 0 when the mistake has no single place.
    pub line: u64,
    /// Column in characters, from 1; 0 when the mistake has no single place.
    pub column: u64,
    /// The line itself.
    pub source_line: String,
}

impl SqlError {
    /// As it is reported to people and the restart policy: the user's to mend, no restart helps.
    #[must_use]
    pub fn to_failure(&self) -> Failure {
        let fault = if self.kind == SqlErrorKind::Internal { Fault::Internal } else { Fault::User };
        Failure { reason: "BadProgram".to_owned(), message: self.to_string(), fault, retry: Retry::Never }
    }
}

impl std::error::Error for SqlError {}

impl fmt::Display for SqlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if self.line == 0 {
            return Ok(());
        }
        write!(f, " at line {}, column {}", self.line, self.column)?;
        let number = self.line.to_string();
        let gutter = " ".repeat(number.len());
        // Tabs are kept so that the caret stands right whatever their width.
        let before = usize::try_from(self.column.saturating_sub(1)).unwrap_or(0);
        let indent: String =
            self.source_line.chars().take(before).map(|c| if c == '\t' { '\t' } else { ' ' }).collect();
        write!(f, "\n{gutter} |\n{number} | {}\n{gutter} | {indent}^", self.source_line)
    }
}

/// The user's text, which knows how to point into itself.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SourceText<'a>(pub(crate) &'a str);

impl SourceText<'_> {
    /// A mistake at a place; an unknown place is left out.
    pub(crate) fn error(self, kind: SqlErrorKind, at: Location, message: impl Into<String>) -> SqlError {
        let line_index = usize::try_from(at.line).unwrap_or(usize::MAX).checked_sub(1);
        let source_line = line_index.and_then(|index| self.0.lines().nth(index)).unwrap_or_default();
        let column = if at.line == 0 { 0 } else { at.column.max(1) };
        SqlError { kind, message: message.into(), line: at.line, column, source_line: source_line.to_owned() }
    }

    /// Something that is SQL but does not run yet.
    pub(crate) fn unsupported(self, what: &str, at: Location) -> SqlError {
        self.error(SqlErrorKind::Unsupported, at, format!("{what} is not supported yet"))
    }

    /// A mistake that the SQL parser found: its message ends with the place.
    pub(crate) fn syntax(self, error: &ParserError) -> SqlError {
        let message = match error {
            ParserError::TokenizerError(message) | ParserError::ParserError(message) => message.clone(),
            ParserError::RecursionLimitExceeded => "the statement is nested too deeply".to_owned(),
        };
        let (message, at) = split_place(&message);
        let at = if at.line == 0 { self.end() } else { at };
        self.error(SqlErrorKind::Syntax, at, sentence(message))
    }

    /// The last place before `at` where this keyword stands, else `at`.
    pub(crate) fn keyword_before(self, at: Location, keyword: &str) -> Location {
        let before = |place: &Location| (place.line, place.column) < (at.line, at.column);
        self.keywords(keyword).into_iter().rfind(before).unwrap_or(at)
    }

    /// The first place after `at` where this keyword stands, else `at`.
    pub(crate) fn keyword_after(self, at: Location, keyword: &str) -> Location {
        let after = |place: &Location| (place.line, place.column) > (at.line, at.column);
        self.keywords(keyword).into_iter().find(after).unwrap_or(at)
    }

    fn keywords(self, keyword: &str) -> Vec<Location> {
        let tokens = self.tokens();
        let is_keyword = |token: &Token| matches!(token, Token::Word(word) if word.quote_style.is_none() && word.value.eq_ignore_ascii_case(keyword));
        tokens.into_iter().filter(|token| is_keyword(&token.token)).map(|token| token.span.start).collect()
    }

    /// The first place where these stand behind each other, in capitals or not.
    pub(crate) fn place_of(self, wanted: &[&str]) -> Option<Location> {
        let is_space = |token: &TokenWithSpan| matches!(token.token, Token::Whitespace(_));
        let tokens: Vec<TokenWithSpan> = self.tokens().into_iter().filter(|token| !is_space(token)).collect();
        let is = |(token, wanted): (&TokenWithSpan, &&str)| token.token.to_string().eq_ignore_ascii_case(wanted);
        tokens.windows(wanted.len()).find(|run| run.iter().zip(wanted).all(is))?.first().map(|first| first.span.start)
    }

    /// A mistake that has no place gets this one.
    pub(crate) fn placed(self, error: SqlError, at: Location) -> SqlError {
        if error.line == 0 { self.error(error.kind, at, error.message) } else { error }
    }

    fn tokens(self) -> Vec<TokenWithSpan> {
        Tokenizer::new(&DIALECT, self.0).tokenize_with_location().unwrap_or_default()
    }

    /// The place after the last character.
    pub(crate) fn end(self) -> Location {
        let trimmed = self.0.trim_end();
        let line = trimmed.lines().count().max(1);
        let column = trimmed.lines().last().map_or(0, |last| last.chars().count()) + 1;
        Location::new(line as u64, column as u64)
    }
}

/// `Expected: x, found: y` as the parser says it, made a sentence.
fn sentence(message: &str) -> String {
    match message.strip_prefix("Expected: ").and_then(|rest| rest.split_once(", found: ")) {
        Some((expected, found)) => {
            let found = if found == "EOF" { "the end of the text" } else { found };
            format!("expected {expected}, found {found}")
        }
        None => message.to_owned(),
    }
}

fn split_place(message: &str) -> (&str, Location) {
    let place = message.rsplit_once(" at Line: ").and_then(|(before, place)| {
        let (line, column) = place.split_once(", Column: ")?;
        Some((before, Location::new(line.trim().parse().ok()?, column.trim().parse().ok()?)))
    });
    place.unwrap_or((message, Location::empty()))
}

/// `; did you mean 'x'?` when a known name is near, else nothing.
pub(crate) fn nearest<T: AsRef<str>>(name: &str, known: impl IntoIterator<Item = T>) -> String {
    let wanted = name.to_lowercase();
    let likeness = |candidate: &T| strsim::jaro_winkler(&wanted, &candidate.as_ref().to_lowercase());
    let best = known.into_iter().map(|candidate| (likeness(&candidate), candidate)).max_by(|a, b| a.0.total_cmp(&b.0));
    match best {
        Some((likeness, candidate)) if likeness >= 0.8 => format!("; did you mean '{}'?", candidate.as_ref()),
        _ => String::new(),
    }
}
