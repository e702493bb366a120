//! From text to statements: a small front end for Flink's statements around sqlparser's parser of queries.
//!
//! DDL is read token by token, since no dialect of sqlparser's speaks Flink's; the query of an INSERT is handed to
//! sqlparser as it is but for window table functions ([`window`]), so all places point into the user's text. Knows no catalog: names are resolved later.

mod create_table;
mod create_view;
mod tokens;
mod window;

use crate::dialect::DIALECT;
use crate::error::{SourceText, SqlError, SqlErrorKind};
use crate::settings::Settings;
use arrow::datatypes::DataType;
use datafusion_sql::sqlparser::ast::{Expr, Ident, Query};
use datafusion_sql::sqlparser::keywords::Keyword;
use datafusion_sql::sqlparser::parser::{Parser, ParserError};
use datafusion_sql::sqlparser::tokenizer::{Location, Token, Tokenizer};

/// The longest program, so that planning it does not exhaust the stack.
const MOST_TOKENS: usize = 100_000;

/// What EXPLAIN may be asked for in Flink besides the plan.
const EXPLAIN_DETAILS: [&str; 4] = ["ESTIMATED_COST", "CHANGELOG_MODE", "PLAN_ADVICE", "JSON_EXECUTION_PLAN"];

/// What takes the place of the sink in the ids of a query that is explained.
const EXPLAINED_QUERY: &str = "query";

/// All statements of a program.
#[derive(Debug, Default)]
pub(crate) struct Script {
    /// In the order written.
    pub(crate) tables: Vec<CreateTable>,
    /// In the order written.
    pub(crate) views: Vec<CreateView>,
    /// In the order written.
    pub(crate) inserts: Vec<Insert>,
    /// EXPLAIN: the statements of each, which do not run.
    pub(crate) explains: Vec<Vec<Insert>>,
    /// What SET said so far.
    pub(crate) settings: Settings,
}

/// CREATE TABLE.
#[derive(Debug)]
pub(crate) struct CreateTable {
    /// Its name.
    pub(crate) name: Ident,
    /// `IF NOT EXISTS`.
    pub(crate) if_not_exists: bool,
    /// Its physical columns, at least one.
    pub(crate) columns: Vec<ColumnDefinition>,
    /// Its computed columns in the order written.
    pub(crate) computed: Vec<ComputedColumn>,
    /// `WATERMARK FOR`.
    pub(crate) watermark: Option<Watermark>,
    /// Positions of the PRIMARY KEY columns.
    pub(crate) primary_key: Vec<usize>,
    /// The columns of PARTITIONED BY.
    pub(crate) partition_keys: Vec<Ident>,
    /// The options of WITH.
    pub(crate) options: Vec<OptionDefinition>,
}

/// A column of CREATE TABLE.
#[derive(Debug)]
pub(crate) struct ColumnDefinition {
    /// Its name.
    pub(crate) name: Ident,
    /// Its type.
    pub(crate) data_type: DataType,
    /// Without NOT NULL and not part of the primary key.
    pub(crate) nullable: bool,
    /// `METADATA`: what the connector knows of a row.
    pub(crate) metadata: Option<MetadataDefinition>,
}

/// `METADATA FROM 'key' VIRTUAL`.
#[derive(Debug)]
pub(crate) struct MetadataDefinition {
    /// The connector's name for it; the column's name where none is given.
    pub(crate) key: String,
    /// Only read, never written.
    pub(crate) is_virtual: bool,
}

/// `name AS expression` in CREATE TABLE.
#[derive(Debug)]
pub(crate) struct ComputedColumn {
    /// Its name.
    pub(crate) name: Ident,
    /// Over the physical columns.
    pub(crate) expression: Expr,
    /// How many physical columns stand before it.
    pub(crate) after: usize,
}

/// `WATERMARK FOR column AS expression`.
#[derive(Debug)]
pub(crate) struct Watermark {
    /// The column with the time of a row.
    pub(crate) column: Ident,
    /// The watermark of a row.
    pub(crate) expression: Expr,
}

/// CREATE VIEW.
#[derive(Debug)]
pub(crate) struct CreateView {
    /// Its name.
    pub(crate) name: Ident,
    /// `IF NOT EXISTS`.
    pub(crate) if_not_exists: bool,
    /// Names of its columns when they are listed.
    pub(crate) columns: Vec<Ident>,
    /// What it stands for.
    pub(crate) query: Box<Query>,
}

/// An option of WITH.
#[derive(Debug)]
pub(crate) struct OptionDefinition {
    /// As written.
    pub(crate) key: String,
    /// Where the key stands.
    pub(crate) key_at: Location,
    /// As written, `${secret:…}` included.
    pub(crate) value: String,
}

/// INSERT INTO … SELECT.
#[derive(Debug)]
pub(crate) struct Insert {
    /// The sink; of the query of EXPLAIN SELECT, which has none, a name for its ids.
    pub(crate) table: Ident,
    /// Whether it is such a query.
    pub(crate) is_query: bool,
    /// The sink's columns when they are listed.
    pub(crate) columns: Vec<Ident>,
    /// What fills it.
    pub(crate) query: Box<Query>,
    /// Where the query begins.
    pub(crate) query_at: Location,
    /// What SET said before it.
    pub(crate) settings: Settings,
}

/// Reads all statements.
pub(crate) fn parse(text: SourceText<'_>) -> Result<Script, SqlError> {
    let tokens = Tokenizer::new(&DIALECT, text.0)
        .tokenize_with_location()
        .map_err(|error| text.error(SqlErrorKind::Syntax, error.location, error.message))?;
    if let Some(token) = tokens.get(MOST_TOKENS) {
        let message = format!("a program of more than {MOST_TOKENS} words");
        return Err(text.unsupported(&message, token.span.start));
    }
    tokens::check(text, &tokens)?;
    let tokens = window::rewrite(text, tokens)?;
    let parser = Parser::new(&DIALECT).with_tokens_with_locations(tokens);
    let mut reader = Reader { text, parser };
    let mut script = Script::default();
    loop {
        while reader.parser.consume_token(&Token::SemiColon) {}
        if reader.parser.peek_token_ref().token == Token::EOF {
            return Ok(script);
        }
        reader.statement(&mut script)?;
        reader.end_of_statement()?;
    }
}

/// The parser together with the text that its places point into.
struct Reader<'a> {
    text: SourceText<'a>,
    parser: Parser<'static>,
}

impl Reader<'_> {
    fn statement(&mut self, script: &mut Script) -> Result<(), SqlError> {
        let at = self.here();
        match self.peek_word().as_deref() {
            Some("CREATE") => self.create(script)?,
            Some("INSERT") => {
                let insert = self.insert(script.settings.clone())?;
                script.inserts.push(insert);
            }
            Some("EXECUTE" | "BEGIN") => {
                let set = self.statement_set(&script.settings)?;
                script.inserts.extend(set);
            }
            Some("SET") => self.set(script)?,
            Some("SELECT" | "WITH" | "VALUES") => {
                let advice = "a query needs a sink: write INSERT INTO table SELECT …";
                return Err(self.text.error(SqlErrorKind::Unsupported, at, advice));
            }
            Some("EXPLAIN") => {
                let explained = self.explain(script)?;
                script.explains.push(explained);
            }
            Some(
                word @ ("RESET" | "DROP" | "ALTER" | "USE" | "SHOW" | "DESCRIBE" | "DESC" | "LOAD" | "UNLOAD" | "ADD"
                | "REMOVE" | "UPDATE" | "DELETE" | "ANALYZE" | "TRUNCATE" | "CALL" | "COMPILE" | "REPLACE"),
            ) => return Err(self.text.unsupported(word, at)),
            _ => {
                return Err(self
                    .unexpected("a statement: CREATE TABLE, CREATE VIEW, INSERT INTO, SET or EXECUTE STATEMENT SET"));
            }
        }
        Ok(())
    }

    fn create(&mut self, script: &mut Script) -> Result<(), SqlError> {
        self.expect_word("CREATE")?;
        let _temporary = self.take_word("TEMPORARY");
        let at = self.here();
        match self.peek_word().as_deref() {
            Some("TABLE") => script.tables.push(self.create_table()?),
            Some("VIEW") => script.views.push(self.create_view()?),
            Some(word @ ("FUNCTION" | "CATALOG" | "DATABASE" | "MODEL" | "SYSTEM" | "MATERIALIZED" | "OR")) => {
                let word = if word == "OR" { "OR REPLACE" } else { word };
                return Err(self.text.unsupported(&format!("CREATE {word}"), at));
            }
            _ => return Err(self.unexpected("TABLE or VIEW")),
        }
        Ok(())
    }

    /// `SET 'key' = 'value'`.
    fn set(&mut self, script: &mut Script) -> Result<(), SqlError> {
        self.expect_word("SET")?;
        let (key, key_at) = self.string("a key in single quotes")?;
        self.expect_token(&Token::Eq)?;
        let (value, value_at) = self.string("the value in single quotes")?;
        script.settings.set(self.text, (&key, key_at), (&value, value_at), !script.inserts.is_empty())
    }

    fn insert(&mut self, settings: Settings) -> Result<Insert, SqlError> {
        self.expect_word("INSERT")?;
        let at = self.here();
        if self.take_word("OVERWRITE") {
            return Err(self.text.unsupported("INSERT OVERWRITE", at));
        }
        self.expect_word("INTO")?;
        let _table = self.take_word("TABLE");
        let table = self.name()?;
        let at = self.here();
        if self.take_word("PARTITION") {
            return Err(self.text.unsupported("INSERT INTO … PARTITION", at));
        }
        let columns = if self.at_column_list() { self.name_list()? } else { Vec::new() };
        let query_at = self.here();
        let query = self.query()?;
        Ok(Insert { table, is_query: false, columns, query, query_at, settings })
    }

    /// `EXPLAIN [PLAN FOR] statement`: an INSERT, a query, or a statement set.
    fn explain(&mut self, script: &Script) -> Result<Vec<Insert>, SqlError> {
        self.expect_word("EXPLAIN")?;
        let at = self.here();
        if self.take_word("PLAN") {
            self.expect_word("FOR")?;
        }
        if let Some(detail) = self.peek_word().filter(|word| EXPLAIN_DETAILS.contains(&word.as_str())) {
            return Err(self.text.unsupported(&format!("EXPLAIN {detail}"), at));
        }
        let (settings, query_at) = (script.settings.clone(), self.here());
        match self.peek_word().as_deref() {
            Some("INSERT") => Ok(vec![self.insert(settings)?]),
            Some("EXECUTE" | "BEGIN") => self.statement_set(&settings),
            Some("STATEMENT") => self.statement_set_body(&settings),
            Some("SELECT" | "WITH" | "VALUES") => {
                let table = Ident::new(EXPLAINED_QUERY);
                let query = self.query()?;
                Ok(vec![Insert { table, is_query: true, columns: Vec::new(), query, query_at, settings }])
            }
            _ => Err(self.unexpected("INSERT INTO, a query or EXECUTE STATEMENT SET")),
        }
    }

    fn query(&mut self) -> Result<Box<Query>, SqlError> {
        self.parser.parse_query().map_err(|error| self.text.syntax(&error))
    }

    /// `(a, b)` follows, and not a query in brackets.
    fn at_column_list(&self) -> bool {
        let [open, next] = self.parser.peek_tokens_ref();
        let begins_query = matches!(&next.token, Token::Word(word)
            if matches!(word.keyword, Keyword::SELECT | Keyword::WITH | Keyword::VALUES));
        open.token == Token::LParen && !begins_query && next.token != Token::LParen
    }

    /// `EXECUTE STATEMENT SET BEGIN insert; … END`, or the older `BEGIN STATEMENT SET; insert; … END`.
    fn statement_set(&mut self, settings: &Settings) -> Result<Vec<Insert>, SqlError> {
        if self.take_word("EXECUTE") {
            return self.statement_set_body(settings);
        }
        self.expect_word("BEGIN")?;
        self.expect_word("STATEMENT")?;
        self.expect_word("SET")?;
        self.end_of_statement()?;
        self.inserts_until_end(settings)
    }

    /// `STATEMENT SET BEGIN insert; … END`.
    fn statement_set_body(&mut self, settings: &Settings) -> Result<Vec<Insert>, SqlError> {
        self.expect_word("STATEMENT")?;
        self.expect_word("SET")?;
        self.expect_word("BEGIN")?;
        self.inserts_until_end(settings)
    }

    fn inserts_until_end(&mut self, settings: &Settings) -> Result<Vec<Insert>, SqlError> {
        let mut inserts = Vec::new();
        loop {
            while self.parser.consume_token(&Token::SemiColon) {}
            if !inserts.is_empty() && self.take_word("END") {
                return Ok(inserts);
            }
            if self.peek_word().as_deref() != Some("INSERT") {
                return Err(self.unexpected("INSERT INTO or END of the statement set"));
            }
            inserts.push(self.insert(settings.clone())?);
            self.end_of_statement()?;
        }
    }

    /// A semicolon, the end of the text, or the END of a statement set, which is left for its reader.
    fn end_of_statement(&mut self) -> Result<(), SqlError> {
        if self.parser.consume_token(&Token::SemiColon) || self.parser.peek_token_ref().token == Token::EOF {
            return Ok(());
        }
        Err(self.unexpected("';' or the end of the statement"))
    }

    /// A table name; one with a catalog or database before it is refused.
    fn name(&mut self) -> Result<Ident, SqlError> {
        let name = self.identifier("a table name")?;
        let at = self.here();
        if self.parser.consume_token(&Token::Period) {
            return Err(self.text.unsupported("a table name with a catalog or database", at));
        }
        Ok(name)
    }

    fn name_list(&mut self) -> Result<Vec<Ident>, SqlError> {
        self.expect_token(&Token::LParen)?;
        let mut names = vec![self.identifier("a column name")?];
        while self.parser.consume_token(&Token::Comma) {
            names.push(self.identifier("a column name")?);
        }
        self.expect_token(&Token::RParen)?;
        Ok(names)
    }

    fn identifier(&mut self, what: &str) -> Result<Ident, SqlError> {
        match &self.parser.peek_token_ref().token {
            Token::Word(_) => self.parser.parse_identifier().map_err(|error| self.text.syntax(&error)),
            _ => Err(self.unexpected(what)),
        }
    }

    /// `'text'`, with its place.
    fn string(&mut self, what: &str) -> Result<(String, Location), SqlError> {
        let token = self.parser.peek_token_ref().clone();
        match token.token {
            Token::SingleQuotedString(value) => {
                self.parser.advance_token();
                Ok((value, token.span.start))
            }
            _ => Err(self.unexpected(what)),
        }
    }

    /// Where the next token stands.
    fn here(&self) -> Location {
        let token = self.parser.peek_token_ref();
        if token.token == Token::EOF { self.text.end() } else { token.span.start }
    }

    /// The next token in capitals when it is an unquoted word.
    fn peek_word(&self) -> Option<String> {
        match &self.parser.peek_token_ref().token {
            Token::Word(word) if word.quote_style.is_none() => Some(word.value.to_uppercase()),
            _ => None,
        }
    }

    fn take_word(&mut self, word: &str) -> bool {
        let is_next = self.peek_word().as_deref() == Some(word);
        if is_next {
            self.parser.advance_token();
        }
        is_next
    }

    fn expect_word(&mut self, word: &str) -> Result<(), SqlError> {
        if self.take_word(word) { Ok(()) } else { Err(self.unexpected(word)) }
    }

    fn expect_token(&mut self, token: &Token) -> Result<(), SqlError> {
        if self.parser.consume_token(token) { Ok(()) } else { Err(self.unexpected(&format!("'{token}'"))) }
    }

    fn unexpected(&self, expected: &str) -> SqlError {
        let found = match &self.parser.peek_token_ref().token {
            Token::EOF => "the end of the text".to_owned(),
            token => format!("'{token}'"),
        };
        self.text.error(SqlErrorKind::Syntax, self.here(), format!("expected {expected}, found {found}"))
    }

    fn syntax(&self, error: &ParserError) -> SqlError {
        self.text.syntax(error)
    }
}
