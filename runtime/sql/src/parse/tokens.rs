//! Mistakes that the syntax tree would not show, found on the tokens: hints where none may stand, which the parser takes
//! for comments, and a comma before FROM.

use super::window::word;
use crate::error::{SourceText, SqlError, SqlErrorKind};
use datafusion_sql::sqlparser::tokenizer::{Token, TokenWithSpan, Whitespace};

/// Refuses them.
pub(super) fn check(text: SourceText<'_>, tokens: &[TokenWithSpan]) -> Result<(), SqlError> {
    let mut before: Option<&TokenWithSpan> = None;
    for token in tokens {
        if let Token::Whitespace(space) = &token.token {
            let hint = Some(space).and_then(hint_of).filter(|_| before.and_then(word).as_deref() != Some("SELECT"));
            if let Some(hint) = hint {
                return Err(text.error(SqlErrorKind::Hint, token.span.start, misplaced(hint)));
            }
            continue;
        }
        if word(token).as_deref() == Some("FROM")
            && let Some(comma) = before.filter(|before| before.token == Token::Comma)
        {
            let message = "expected a column after ',', found 'FROM'";
            return Err(text.error(SqlErrorKind::Syntax, comma.span.start, message));
        }
        before = Some(token);
    }
    Ok(())
}

/// What stands in `/*+ … */`.
pub(super) fn hint_of(space: &Whitespace) -> Option<&str> {
    match space {
        Whitespace::MultiLineComment(comment) => comment.strip_prefix('+'),
        _ => None,
    }
}

fn misplaced(hint: &str) -> String {
    let name: String = hint.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    match name.to_uppercase().as_str() {
        "OPTIONS" => {
            "the hint OPTIONS behind a table is not supported yet: write the options into WITH (…) of its CREATE \
                      TABLE, or declare a second table with other options"
                .to_owned()
        }
        name => format!(
            "the hint {name} stands where none may: write it right behind SELECT, as in SELECT /*+ STATE_TTL('t' = '1 d') \
             */ …"
        ),
    }
}
