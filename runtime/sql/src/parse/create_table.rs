//! CREATE TABLE as Flink writes it: physical, metadata and computed columns, PRIMARY KEY … NOT ENFORCED, WATERMARK, WITH.
//!
//! What Flink has beyond that is refused by name and place.

use super::{ColumnDefinition, ComputedColumn, CreateTable, MetadataDefinition, OptionDefinition, Reader, Watermark};
use crate::error::{SqlError, SqlErrorKind, nearest};
use crate::types::{self, TypeRefusal};
use arrow::datatypes::DataType;
use datafusion_sql::sqlparser::ast::Ident;
use datafusion_sql::sqlparser::tokenizer::Token;

/// What the brackets of CREATE TABLE hold.
#[derive(Default)]
struct Elements {
    columns: Vec<ColumnDefinition>,
    computed: Vec<ComputedColumn>,
    watermark: Option<Watermark>,
    /// The key columns by name, once declared.
    primary_key: Option<Vec<Ident>>,
}

impl Reader<'_> {
    pub(super) fn create_table(&mut self) -> Result<CreateTable, SqlError> {
        self.expect_word("TABLE")?;
        let if_not_exists = self.if_not_exists()?;
        let name = self.name()?;
        let at = self.here();
        if matches!(self.peek_word().as_deref(), Some("AS" | "LIKE")) {
            return Err(self.text.unsupported("CREATE TABLE … AS or LIKE", at));
        }
        let mut elements = self.elements()?;
        let primary_key = self.resolve_key(&mut elements)?;
        if elements.columns.iter().all(|column| column.metadata.is_some()) {
            let message = format!("table '{}' has no physical column", name.value);
            return Err(self.text.error(SqlErrorKind::Invalid, name.span.start, message));
        }
        let partition_keys = self.table_clauses(&elements)?;
        let options = if self.take_word("WITH") { self.options()? } else { Vec::new() };
        let at = self.here();
        if matches!(self.peek_word().as_deref(), Some("AS" | "LIKE")) {
            return Err(self.text.unsupported("CREATE TABLE … AS or LIKE", at));
        }
        let Elements { columns, computed, watermark, primary_key: _ } = elements;
        Ok(CreateTable { name, if_not_exists, columns, computed, watermark, primary_key, partition_keys, options })
    }

    pub(super) fn if_not_exists(&mut self) -> Result<bool, SqlError> {
        let is_there = self.take_word("IF");
        if is_there {
            self.expect_word("NOT")?;
            self.expect_word("EXISTS")?;
        }
        Ok(is_there)
    }

    fn elements(&mut self) -> Result<Elements, SqlError> {
        self.expect_token(&Token::LParen)?;
        let mut elements = Elements::default();
        loop {
            self.element(&mut elements)?;
            if !self.parser.consume_token(&Token::Comma) {
                break;
            }
        }
        self.expect_token(&Token::RParen)?;
        Ok(elements)
    }

    fn element(&mut self, elements: &mut Elements) -> Result<(), SqlError> {
        let at = self.here();
        match self.peek_word().as_deref() {
            Some("WATERMARK") => self.watermark(elements),
            Some("CONSTRAINT") => {
                self.parser.advance_token();
                let _name = self.identifier("a constraint name")?;
                self.primary_key(elements)
            }
            Some("PRIMARY") => self.primary_key(elements),
            Some("UNIQUE") => Err(self.text.unsupported("UNIQUE", at)),
            Some("PERIOD") => Err(self.text.unsupported("PERIOD", at)),
            _ => self.column(elements),
        }
    }

    /// `WATERMARK FOR column AS expression`.
    fn watermark(&mut self, elements: &mut Elements) -> Result<(), SqlError> {
        let at = self.here();
        self.expect_word("WATERMARK")?;
        self.expect_word("FOR")?;
        let column = self.identifier("a column name")?;
        self.expect_word("AS")?;
        let expression = self.parser.parse_expr().map_err(|error| self.syntax(&error))?;
        if elements.watermark.replace(Watermark { column, expression }).is_some() {
            return Err(self.text.error(SqlErrorKind::Duplicate, at, "a second WATERMARK"));
        }
        Ok(())
    }

    /// `PRIMARY KEY (a, b) NOT ENFORCED`.
    fn primary_key(&mut self, elements: &mut Elements) -> Result<(), SqlError> {
        let at = self.here();
        self.expect_word("PRIMARY")?;
        self.expect_word("KEY")?;
        let names = self.name_list()?;
        self.not_enforced()?;
        if elements.primary_key.replace(names).is_some() {
            return Err(self.text.error(SqlErrorKind::Duplicate, at, "a second PRIMARY KEY"));
        }
        Ok(())
    }

    fn not_enforced(&mut self) -> Result<(), SqlError> {
        let at = self.here();
        if self.take_word("NOT") && self.take_word("ENFORCED") {
            return Ok(());
        }
        let message = "a PRIMARY KEY must be declared NOT ENFORCED: the data is not Sluice's to check";
        Err(self.text.error(SqlErrorKind::Unsupported, at, message))
    }

    fn column(&mut self, elements: &mut Elements) -> Result<(), SqlError> {
        let name = self.identifier("a column name")?;
        let declared = elements.columns.iter().map(|column| &column.name);
        let mut declared = declared.chain(elements.computed.iter().map(|column| &column.name));
        if let Some(first) = declared.find(|first| first.value == name.value) {
            let message = format!("column '{}' is already declared in line {}", name.value, first.span.start.line);
            return Err(self.text.error(SqlErrorKind::Duplicate, name.span.start, message));
        }
        if self.take_word("AS") {
            let expression = self.parser.parse_expr().map_err(|error| self.syntax(&error))?;
            elements.computed.push(ComputedColumn { name, expression, after: elements.columns.len() });
            if self.take_word("COMMENT") {
                self.string("a comment in single quotes")?;
            }
            return Ok(());
        }
        let data_type = self.data_type()?;
        elements.columns.push(ColumnDefinition { name, data_type, nullable: true, metadata: None });
        self.column_clauses(elements)
    }

    fn column_clauses(&mut self, elements: &mut Elements) -> Result<(), SqlError> {
        loop {
            let at = self.here();
            let Some(column) = elements.columns.last_mut() else { return Ok(()) };
            match self.peek_word().as_deref() {
                Some("NOT") => {
                    self.parser.advance_token();
                    self.expect_word("NULL")?;
                    column.nullable = false;
                }
                Some("NULL") => self.parser.advance_token(),
                Some("COMMENT") => {
                    self.parser.advance_token();
                    self.string("a comment in single quotes")?;
                }
                Some("PRIMARY") => {
                    let name = column.name.clone();
                    self.parser.advance_token();
                    self.expect_word("KEY")?;
                    self.not_enforced()?;
                    if elements.primary_key.replace(vec![name]).is_some() {
                        return Err(self.text.error(SqlErrorKind::Duplicate, at, "a second PRIMARY KEY"));
                    }
                }
                Some("METADATA") => {
                    let name = column.name.value.clone();
                    let metadata = self.metadata(name)?;
                    if let Some(column) = elements.columns.last_mut() {
                        column.metadata = Some(metadata);
                    }
                }
                Some("DEFAULT") => return Err(self.text.unsupported("DEFAULT", at)),
                _ => return Ok(()),
            }
        }
    }

    /// `METADATA [FROM 'key'] [VIRTUAL]`.
    fn metadata(&mut self, column: String) -> Result<MetadataDefinition, SqlError> {
        self.expect_word("METADATA")?;
        let key = if self.take_word("FROM") { self.string("the connector's key in single quotes")?.0 } else { column };
        Ok(MetadataDefinition { key, is_virtual: self.take_word("VIRTUAL") })
    }

    fn data_type(&mut self) -> Result<DataType, SqlError> {
        let at = self.here();
        let word = self.peek_word();
        if let Some(later) = word.filter(|word| types::is_later(word)) {
            return Err(self.text.unsupported(&format!("type {later}"), at));
        }
        if !matches!(self.parser.peek_token_ref().token, Token::Word(_)) {
            return Err(self.unexpected("a type"));
        }
        let sql = self.parser.parse_data_type().map_err(|error| self.syntax(&error))?;
        types::arrow_type(&sql).map_err(|refusal| match refusal {
            TypeRefusal::Unsupported(what) => self.text.unsupported(&what, at),
            TypeRefusal::Unknown(message) => self.text.error(SqlErrorKind::UnknownType, at, message),
        })
    }

    /// Finds the key's columns, which thereby become NOT NULL, as in Flink.
    fn resolve_key(&self, elements: &mut Elements) -> Result<Vec<usize>, SqlError> {
        let mut positions = Vec::new();
        for name in elements.primary_key.iter().flatten() {
            if elements.computed.iter().any(|column| column.name.value == name.value) {
                let message = format!("column '{}' is computed and cannot be part of the PRIMARY KEY", name.value);
                return Err(self.text.error(SqlErrorKind::Invalid, name.span.start, message));
            }
            let Some(position) = elements.columns.iter().position(|column| column.name.value == name.value) else {
                let columns = elements.columns.iter().map(|column| column.name.value.as_str());
                let message = format!("PRIMARY KEY names no column: '{}'{}", name.value, nearest(&name.value, columns));
                return Err(self.text.error(SqlErrorKind::UnknownColumn, name.span.start, message));
            };
            if elements.columns[position].metadata.is_some() {
                let message = format!("column '{}' is METADATA and cannot be part of the PRIMARY KEY", name.value);
                return Err(self.text.error(SqlErrorKind::Invalid, name.span.start, message));
            }
            if positions.contains(&position) {
                let message = format!("column '{}' stands in the PRIMARY KEY twice", name.value);
                return Err(self.text.error(SqlErrorKind::Duplicate, name.span.start, message));
            }
            positions.push(position);
        }
        for position in &positions {
            elements.columns[*position].nullable = false;
        }
        Ok(positions)
    }

    /// What may stand between the columns and WITH: the columns of PARTITIONED BY.
    fn table_clauses(&mut self, elements: &Elements) -> Result<Vec<Ident>, SqlError> {
        let mut partition_keys = Vec::new();
        loop {
            let at = self.here();
            match self.peek_word().as_deref() {
                Some("COMMENT") => {
                    self.parser.advance_token();
                    self.string("a comment in single quotes")?;
                }
                Some("PARTITIONED") if partition_keys.is_empty() => {
                    self.parser.advance_token();
                    self.expect_word("BY")?;
                    partition_keys = self.name_list()?;
                    self.check_partition_keys(&partition_keys, elements)?;
                }
                Some("PARTITIONED") => {
                    return Err(self.text.error(SqlErrorKind::Duplicate, at, "a second PARTITIONED BY"));
                }
                Some("DISTRIBUTED") => return Err(self.text.unsupported("DISTRIBUTED BY", at)),
                _ => return Ok(partition_keys),
            }
        }
    }

    fn check_partition_keys(&self, keys: &[Ident], elements: &Elements) -> Result<(), SqlError> {
        let physical = || elements.columns.iter().filter(|column| column.metadata.is_none());
        for (position, key) in keys.iter().enumerate() {
            let (name, at) = (&key.value, key.span.start);
            if !physical().any(|column| column.name.value == *name) {
                let near = nearest(name, physical().map(|column| column.name.value.as_str()));
                let message = format!("PARTITIONED BY names no physical column: '{name}'{near}");
                return Err(self.text.error(SqlErrorKind::UnknownColumn, at, message));
            }
            if keys[..position].iter().any(|first| first.value == *name) {
                let message = format!("column '{name}' stands in PARTITIONED BY twice");
                return Err(self.text.error(SqlErrorKind::Duplicate, at, message));
            }
        }
        match keys.first().filter(|_| physical().count() == keys.len()) {
            None => Ok(()),
            Some(key) => {
                let message = "a table needs a physical column beside those of PARTITIONED BY";
                Err(self.text.error(SqlErrorKind::Invalid, key.span.start, message))
            }
        }
    }

    fn options(&mut self) -> Result<Vec<OptionDefinition>, SqlError> {
        self.expect_token(&Token::LParen)?;
        let mut options: Vec<OptionDefinition> = Vec::new();
        loop {
            let (key, key_at) = self.string("an option in single quotes")?;
            self.expect_token(&Token::Eq)?;
            let (value, _) = self.string("the option's value in single quotes")?;
            if options.iter().any(|option| option.key == key) {
                let message = format!("option '{key}' is given twice");
                return Err(self.text.error(SqlErrorKind::Duplicate, key_at, message));
            }
            options.push(OptionDefinition { key, key_at, value });
            if !self.parser.consume_token(&Token::Comma) {
                break;
            }
        }
        self.expect_token(&Token::RParen)?;
        Ok(options)
    }
}
