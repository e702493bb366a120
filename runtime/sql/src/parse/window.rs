//! Window table functions on the level of tokens: `TABLE(TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '10' SECOND))` is no SQL that
//! the parser of queries knows.
//!
//! Each becomes a derived table that says what it is: `(SELECT *, $window('TUMBLE', ts, INTERVAL '10' SECOND) AS window_start,
//! NULL AS window_end, NULL AS window_time FROM t)`, which [`crate::window`] knows again. Tokens of the user's keep their
//! places; the others stand where the function's name does.

use super::tokens::hint_of;
use crate::error::{SourceText, SqlError, SqlErrorKind};
use crate::window::MARKER;
use datafusion_sql::sqlparser::keywords::Keyword;
use datafusion_sql::sqlparser::tokenizer::{Span, Token, TokenWithSpan, Word};

/// The functions, with the names of their parameters in order, and how many of these must be given.
const FUNCTIONS: [(&str, &[&str], usize); 4] = [
    ("TUMBLE", &["DATA", "TIMECOL", "SIZE", "OFFSET"], 3),
    ("HOP", &["DATA", "TIMECOL", "SLIDE", "SIZE", "OFFSET"], 4),
    ("CUMULATE", &["DATA", "TIMECOL", "STEP", "SIZE", "OFFSET"], 4),
    ("SESSION", &["DATA", "TIMECOL", "GAP"], 3),
];

/// Puts a derived table in the place of each.
pub(super) fn rewrite(text: SourceText<'_>, tokens: Vec<TokenWithSpan>) -> Result<Vec<TokenWithSpan>, SqlError> {
    // Hints are comments to the tokenizer.
    let is_space = |token: &TokenWithSpan| matches!(&token.token, Token::Whitespace(space) if hint_of(space).is_none());
    let is_there = |token: &TokenWithSpan| word(token).is_some_and(|word| function(&word).is_some() || word == "TABLE");
    if !tokens.iter().any(is_there) {
        return Ok(tokens);
    }
    let tokens: Vec<TokenWithSpan> = tokens.into_iter().filter(|token| !is_space(token)).collect();
    Rewriter { text }.all(&tokens)
}

fn function(name: &str) -> Option<(&'static str, &'static [&'static str], usize)> {
    FUNCTIONS.into_iter().find(|(known, ..)| *known == name)
}

/// An unquoted word in capitals.
pub(super) fn word(token: &TokenWithSpan) -> Option<String> {
    match &token.token {
        Token::Word(word) if word.quote_style.is_none() => Some(word.value.to_uppercase()),
        _ => None,
    }
}

fn is(token: Option<&TokenWithSpan>, wanted: &Token) -> bool {
    token.is_some_and(|token| token.token == *wanted)
}

#[derive(Clone, Copy)]
struct Rewriter<'a> {
    text: SourceText<'a>,
}

impl Rewriter<'_> {
    fn all(self, tokens: &[TokenWithSpan]) -> Result<Vec<TokenWithSpan>, SqlError> {
        let mut made = Vec::with_capacity(tokens.len());
        let mut at = 0;
        while let Some(token) = tokens.get(at) {
            let rest = &tokens[at..];
            if word(token).as_deref() == Some("TABLE") && is(rest.get(1), &Token::LParen) && begins_call(&rest[2..]) {
                let Some(name) = rest.get(2).filter(|name| word(name).is_some_and(|name| function(&name).is_some()))
                else {
                    let what = format!("{} (a table function)", rest[2].token.to_string().to_uppercase());
                    return Err(self.text.unsupported(&what, rest[2].span.start));
                };
                let (call, taken) = self.call(&rest[2..])?;
                if !is(rest.get(2 + taken), &Token::RParen) {
                    let message = format!("expected ')' after the call of {}", name.token);
                    let place = rest.get(2 + taken).unwrap_or(name);
                    return Err(self.text.error(SqlErrorKind::Syntax, place.span.start, message));
                }
                made.extend(call);
                at += 2 + taken + 1;
            } else if word(token).is_some_and(|name| function(&name).is_some()) && is_table_call(&rest[1..]) {
                let (call, taken) = self.call(rest)?;
                made.extend(call);
                at += taken;
            } else {
                made.push(token.clone());
                at += 1;
            }
        }
        Ok(made)
    }

    /// The derived table for a call, and how many tokens the call has.
    fn call(self, tokens: &[TokenWithSpan]) -> Result<(Vec<TokenWithSpan>, usize), SqlError> {
        let place = tokens[0].span;
        let name = word(&tokens[0]).unwrap_or_default();
        let Some((name, parameters, needed)) = function(&name) else {
            return Err(self.text.error(SqlErrorKind::Internal, place.start, "this is no window table function"));
        };
        let Some(end) = closing(&tokens[1..]) else {
            let message = format!("the brackets of {name}(…) are not closed");
            return Err(self.text.error(SqlErrorKind::Syntax, place.start, message));
        };
        let inner = &tokens[2..=end];
        let arguments = self.bind(name, parameters, needed, place, inner)?;
        let (data, partition) = self.data(name, arguments[0])?;
        let time = self.descriptor(name, arguments[1])?;
        let token = |token: Token| TokenWithSpan::new(token, place);
        let mut made = vec![token(Token::LParen), keyword("SELECT", Keyword::SELECT, place), token(Token::Mul)];
        made.extend([token(Token::Comma), quoted(MARKER, place), token(Token::LParen)]);
        made.push(token(Token::SingleQuotedString(name.to_owned())));
        let others = arguments[2..].iter().filter(|argument| !argument.is_empty()).copied();
        for argument in [time].into_iter().chain(others).chain(partition) {
            made.push(token(Token::Comma));
            made.extend(argument.iter().cloned());
        }
        made.push(token(Token::RParen));
        made.extend([keyword("AS", Keyword::AS, place), quoted("window_start", place)]);
        for column in ["window_end", "window_time"] {
            made.extend([token(Token::Comma), keyword("NULL", Keyword::NULL, place)]);
            made.extend([keyword("AS", Keyword::AS, place), quoted(column, place)]);
        }
        made.push(keyword("FROM", Keyword::FROM, place));
        made.extend(self.all(data)?);
        made.push(token(Token::RParen));
        Ok((made, end + 2))
    }

    /// The arguments in the order of the parameters; those that are not given are empty.
    fn bind<'t>(
        self,
        name: &str,
        parameters: &[&str],
        needed: usize,
        place: Span,
        inner: &'t [TokenWithSpan],
    ) -> Result<Vec<&'t [TokenWithSpan]>, SqlError> {
        let mut bound: Vec<&[TokenWithSpan]> = vec![&[]; parameters.len()];
        for (position, argument) in divided(inner).into_iter().enumerate() {
            let at = argument.first().map_or(place, |first| first.span).start;
            let (index, value) = if is(argument.get(1), &Token::RArrow) {
                let given = argument[0].token.to_string().to_uppercase();
                let index = parameters.iter().position(|parameter| *parameter == given).ok_or_else(|| {
                    let message = format!("{name} has no parameter {given}: it has {}", parameters.join(", "));
                    self.text.error(SqlErrorKind::Invalid, at, message)
                })?;
                (index, &argument[2..])
            } else {
                (position, argument)
            };
            let Some(slot) = bound.get_mut(index).filter(|slot| slot.is_empty()) else {
                let message = format!("{name} takes {}, each once", parameters.join(", "));
                return Err(self.text.error(SqlErrorKind::Invalid, at, message));
            };
            *slot = value;
        }
        match bound.iter().take(needed).position(|argument| argument.is_empty()) {
            Some(absent) => {
                let message = format!("{name} needs {}: {}", parameters[absent], usage(name));
                Err(self.text.error(SqlErrorKind::Invalid, place.start, message))
            }
            None => Ok(bound),
        }
    }

    /// `TABLE t`, `t` or a query in brackets, and what PARTITION BY names.
    fn data<'t>(
        self,
        name: &str,
        argument: &'t [TokenWithSpan],
    ) -> Result<(&'t [TokenWithSpan], Vec<&'t [TokenWithSpan]>), SqlError> {
        let has_table = argument.first().and_then(word).as_deref() == Some("TABLE");
        let argument = if has_table { &argument[1..] } else { argument };
        let by = argument
            .windows(2)
            .position(|pair| word(&pair[0]).as_deref() == Some("PARTITION") && word(&pair[1]).as_deref() == Some("BY"));
        let (data, partition) = match by {
            None => (argument, Vec::new()),
            Some(by) if name == "SESSION" => {
                let columns = &argument[by + 2..];
                let in_brackets = is(columns.first(), &Token::LParen) && is(columns.last(), &Token::RParen);
                let columns = if in_brackets { &columns[1..columns.len() - 1] } else { columns };
                (&argument[..by], divided(columns))
            }
            Some(by) => {
                let what = format!("PARTITION BY in {name}, whose windows are the same for all rows,");
                return Err(self.text.unsupported(&what, argument[by].span.start));
            }
        };
        let is_name = matches!(data, [TokenWithSpan { token: Token::Word(_), .. }]);
        let is_query = is(data.first(), &Token::LParen) && is(data.last(), &Token::RParen);
        match data.first() {
            Some(_) if is_name || is_query => Ok((data, partition)),
            first => {
                let message = format!("{name} reads a table or a view: {}", usage(name));
                let at = first.map_or_else(|| self.text.end(), |first| first.span.start);
                Err(self.text.error(SqlErrorKind::Syntax, at, message))
            }
        }
    }

    /// `DESCRIPTOR(ts)`.
    fn descriptor<'t>(self, name: &str, argument: &'t [TokenWithSpan]) -> Result<&'t [TokenWithSpan], SqlError> {
        match argument {
            [descriptor, open, inner @ .., close]
                if word(descriptor).as_deref() == Some("DESCRIPTOR")
                    && open.token == Token::LParen
                    && close.token == Token::RParen
                    && matches!(inner, [TokenWithSpan { token: Token::Word(_), .. }]) =>
            {
                Ok(inner)
            }
            _ => {
                let message = format!("{name} takes its time column as DESCRIPTOR(column): {}", usage(name));
                let at = argument.first().map_or_else(|| self.text.end(), |first| first.span.start);
                Err(self.text.error(SqlErrorKind::Syntax, at, message))
            }
        }
    }
}

/// Whether a function's name and a bracket follow.
fn begins_call(tokens: &[TokenWithSpan]) -> bool {
    matches!(tokens, [TokenWithSpan { token: Token::Word(_), .. }, open, ..] if open.token == Token::LParen)
}

/// `(TABLE …`, `((SELECT …` or `(DATA => …` follows: not the grouping function of the same name.
fn is_table_call(tokens: &[TokenWithSpan]) -> bool {
    is(tokens.first(), &Token::LParen)
        && (tokens.get(1).and_then(word).as_deref() == Some("TABLE")
            || is(tokens.get(1), &Token::LParen)
            || is(tokens.get(2), &Token::RArrow))
}

/// The position of the bracket that closes the first one.
fn closing(tokens: &[TokenWithSpan]) -> Option<usize> {
    let mut depth = 0_usize;
    tokens.iter().position(|token| {
        match token.token {
            Token::LParen => depth += 1,
            Token::RParen => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0
    })
}

/// What commas outside of brackets divide.
fn divided(tokens: &[TokenWithSpan]) -> Vec<&[TokenWithSpan]> {
    let mut depth = 0_usize;
    let is_comma = |token: &TokenWithSpan| {
        match token.token {
            Token::LParen => depth += 1,
            Token::RParen => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0 && token.token == Token::Comma
    };
    tokens.split(is_comma).collect()
}

/// How the function is called.
fn usage(name: &str) -> &'static str {
    match name {
        "TUMBLE" => "TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '10' SECOND [, offset])",
        "HOP" => "HOP(TABLE t, DESCRIPTOR(ts), INTERVAL '1' SECOND, INTERVAL '10' SECOND [, offset]), the slide first",
        "CUMULATE" => {
            "CUMULATE(TABLE t, DESCRIPTOR(ts), INTERVAL '1' MINUTE, INTERVAL '1' HOUR [, offset]), the step first"
        }
        _ => "SESSION(TABLE t [PARTITION BY (k, …)], DESCRIPTOR(ts), INTERVAL '10' SECOND)",
    }
}

fn keyword(value: &str, keyword: Keyword, place: Span) -> TokenWithSpan {
    TokenWithSpan::new(Token::Word(Word { value: value.to_owned(), quote_style: None, keyword }), place)
}

fn quoted(value: &str, place: Span) -> TokenWithSpan {
    let word = Word { value: value.to_owned(), quote_style: Some('`'), keyword: Keyword::NoKeyword };
    TokenWithSpan::new(Token::Word(word), place)
}
