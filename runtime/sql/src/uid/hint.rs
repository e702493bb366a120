//! Hints after SELECT: `/*+ UID('name'), STATE_TTL('t' = '1 d') */`.

use super::names::relation_name;
use crate::dialect::DIALECT;
use crate::error::{SourceText, SqlError, SqlErrorKind, nearest};
use crate::settings::duration;
use datafusion_sql::sqlparser::ast::{OptimizerHint, OptimizerHintStyle, Select, TableFactor, TableWithJoins};
use datafusion_sql::sqlparser::tokenizer::{Location, Token, Tokenizer, Whitespace};
use std::time::Duration;

/// Hints of Flink that are known but not supported yet.
const LATER: [&str; 6] = ["OPTIONS", "LOOKUP", "BROADCAST", "SHUFFLE_HASH", "SHUFFLE_MERGE", "NEST_LOOP"];

/// The hints of one SELECT.
#[derive(Debug)]
pub(super) struct Hints {
    at: Location,
    /// UID.
    pub(super) uid: Option<String>,
    /// STATE_TTL: tables by the names they have in this SELECT.
    ttls: Vec<(String, Duration)>,
}

impl Hints {
    /// Reads them.
    pub(super) fn read(text: SourceText<'_>, select: &Select) -> Result<Self, SqlError> {
        let mut hints = Self { at: select.select_token.0.span.start, uid: None, ttls: Vec::new() };
        for OptimizerHint { prefix, text: text_of_hint, style } in &select.optimizer_hints {
            // `/*abc+ … */` and `--+ …` are comments in Flink.
            if !prefix.is_empty() || *style != OptimizerHintStyle::MultiLine {
                continue;
            }
            let tokens = Tokenizer::new(&DIALECT, text_of_hint).tokenize();
            let tokens = tokens.map_err(|error| text.error(SqlErrorKind::Hint, hints.at, error.message))?;
            let spaces = |token: &Token| {
                !matches!(token, Token::Whitespace(Whitespace::Space | Whitespace::Newline | Whitespace::Tab))
            };
            let tokens: Vec<Token> = tokens.into_iter().filter(spaces).collect();
            hints.take_all(text, &tokens)?;
        }
        Ok(hints)
    }

    fn take_all(&mut self, text: SourceText<'_>, mut tokens: &[Token]) -> Result<(), SqlError> {
        while let [Token::Word(name), rest @ ..] = tokens {
            let name = name.value.to_uppercase();
            if LATER.contains(&name.as_str()) {
                return Err(text.unsupported(&format!("the hint {name}"), self.at));
            }
            let end = rest.iter().position(|token| *token == Token::RParen).unwrap_or(rest.len());
            let arguments = rest.get(..end).and_then(|inside| inside.strip_prefix(&[Token::LParen]));
            match name.as_str() {
                "UID" => self.take_uid(text, arguments)?,
                "STATE_TTL" => self.take_ttl(text, arguments)?,
                _ => {
                    let near = nearest(&name, ["UID", "STATE_TTL"]);
                    return Err(self.wrong(text, format!("the hint {name} does not exist{near}")));
                }
            }
            tokens = rest.get(end + 1..).unwrap_or_default();
            tokens = tokens.strip_prefix(&[Token::Comma]).unwrap_or(tokens);
        }
        match tokens.first() {
            None => Ok(()),
            Some(other) => Err(self.wrong(text, format!("a hint is a name with arguments in brackets, not '{other}'"))),
        }
    }

    fn take_uid(&mut self, text: SourceText<'_>, arguments: Option<&[Token]>) -> Result<(), SqlError> {
        let uid = match arguments {
            Some([Token::SingleQuotedString(uid)]) => Some(uid),
            _ => None,
        };
        let is_good =
            |uid: &&String| !uid.is_empty() && !uid.contains(['\'', '/']) && !uid.chars().any(char::is_control);
        let Some(uid) = uid.filter(is_good) else {
            let message = "the hint UID takes one name in single quotes, as in /*+ UID('page views') */";
            return Err(self.wrong(text, message.to_owned()));
        };
        match self.uid.replace(uid.clone()) {
            None => Ok(()),
            Some(_) => Err(self.wrong(text, "a second UID hint".to_owned())),
        }
    }

    /// `'t' = '1 d', 'u' = '12 h'`.
    fn take_ttl(&mut self, text: SourceText<'_>, arguments: Option<&[Token]>) -> Result<(), SqlError> {
        let pairs: Vec<&[Token]> = arguments.unwrap_or_default().split(|token| *token == Token::Comma).collect();
        for pair in pairs {
            let [Token::SingleQuotedString(table), Token::Eq, Token::SingleQuotedString(value)] = pair else {
                let message =
                    "the hint STATE_TTL takes tables with durations, as in /*+ STATE_TTL('orders' = '1 d') */";
                return Err(self.wrong(text, message.to_owned()));
            };
            let ttl = duration(value).map_err(|message| self.wrong(text, format!("the hint STATE_TTL: {message}")))?;
            self.ttls.push((table.clone(), ttl));
        }
        Ok(())
    }

    /// Every table that STATE_TTL names must stand in FROM.
    pub(super) fn check_tables(&self, text: SourceText<'_>, select: &Select) -> Result<(), SqlError> {
        let known: Vec<String> = select.from.iter().flat_map(all_names).collect();
        match self.ttls.iter().find(|(table, _)| !known.contains(table)) {
            None => Ok(()),
            Some((table, _)) => {
                let near = nearest(table, &known);
                Err(self.wrong(text, format!("the hint STATE_TTL names '{table}', which is not in this FROM{near}")))
            }
        }
    }

    /// What STATE_TTL says of a relation: 0 keeps its state for ever.
    pub(super) fn ttl_of(&self, relation: &TableFactor) -> Option<Option<Duration>> {
        let name = relation_name(relation)?;
        let (_, ttl) = self.ttls.iter().find(|(table, _)| *table == name)?;
        Some(Some(*ttl).filter(|ttl| !ttl.is_zero()))
    }

    fn wrong(&self, text: SourceText<'_>, message: String) -> SqlError {
        text.error(SqlErrorKind::Hint, self.at, message)
    }
}

fn all_names(from: &TableWithJoins) -> Vec<String> {
    let relations = std::iter::once(&from.relation).chain(from.joins.iter().map(|join| &join.relation));
    relations
        .flat_map(|relation| match relation {
            TableFactor::NestedJoin { table_with_joins, .. } => all_names(table_with_joins),
            other => relation_name(other).into_iter().collect(),
        })
        .collect()
}
