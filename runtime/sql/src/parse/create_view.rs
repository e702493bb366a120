//! CREATE VIEW: a name for a query.

use super::{CreateView, Reader};
use crate::error::SqlError;
use datafusion_sql::sqlparser::tokenizer::Token;

impl Reader<'_> {
    /// `VIEW [IF NOT EXISTS] name [(columns)] [COMMENT '…'] AS query`.
    pub(super) fn create_view(&mut self) -> Result<CreateView, SqlError> {
        self.expect_word("VIEW")?;
        let if_not_exists = self.if_not_exists()?;
        let name = self.name()?;
        let columns = if self.parser.peek_token_ref().token == Token::LParen { self.name_list()? } else { Vec::new() };
        if self.take_word("COMMENT") {
            self.string("a comment in single quotes")?;
        }
        self.expect_word("AS")?;
        let query = self.query()?;
        Ok(CreateView { name, if_not_exists, columns, query })
    }
}
