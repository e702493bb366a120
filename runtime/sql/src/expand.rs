//! Puts the queries of views, of WITH and of tables with computed columns where their names stand in FROM.
//!
//! What remains names only declared tables with physical columns, so that nothing after this step knows of views. The
//! places of a view's query are those in its own statement, so mistakes in it point there. A view sees the views before
//! it, a query of WITH those before it, and both hide tables of the same name; so nothing can contain itself.

use crate::catalog::Tables;
use crate::dialect::DIALECT;
use crate::error::{SourceText, SqlError, SqlErrorKind};
use crate::parse::{CreateTable, CreateView};
use crate::validate::clauses;
use datafusion_sql::sqlparser::ast::{
    Cte, Expr, Ident, ObjectName, ObjectNamePart, Query, Select, SelectItem, SetExpr, Spanned, TableAlias,
    TableAliasColumnDef, TableFactor, TableWithJoins, With,
};
use datafusion_sql::sqlparser::parser::{Parser, ParserError};
use datafusion_sql::sqlparser::tokenizer::{Token, Tokenizer};

/// How many queries all names together may be replaced by: views of views of views grow fast.
const MOST_QUERIES: usize = 10_000;

/// What a name stands for.
#[derive(Debug, Clone)]
struct Named {
    name: String,
    columns: Vec<Ident>,
    query: Box<Query>,
    /// How many queries are put in the place of the name.
    queries: usize,
}

/// Replaces names.
#[derive(Debug)]
pub(crate) struct Expander<'a> {
    text: SourceText<'a>,
    /// Tables with computed columns, then views in the order declared.
    named: Vec<Named>,
    /// Queries put in the places of names so far.
    queries: usize,
}

impl<'a> Expander<'a> {
    /// Takes the views, whose own queries are expanded by that.
    pub(crate) fn new(text: SourceText<'a>, tables: &Tables, views: Vec<CreateView>) -> Result<Self, SqlError> {
        let mut expander = Self { text, named: Vec::new(), queries: 0 };
        for table in tables.all().filter(|table| !table.definition.computed.is_empty()) {
            let query = declared_query(&table.definition, None).map_err(|error| text.syntax(&error))?;
            let name = table.name().to_owned();
            expander.named.push(Named { name, columns: Vec::new(), query, queries: 1 });
        }
        for view in views {
            expander.view(tables, view)?;
        }
        Ok(expander)
    }

    fn view(&mut self, tables: &Tables, view: CreateView) -> Result<(), SqlError> {
        let CreateView { name, if_not_exists, columns, mut query } = view;
        let is_known = tables.get(&name.value).is_some() || self.named.iter().any(|other| other.name == name.value);
        if is_known && if_not_exists {
            return Ok(());
        }
        if is_known {
            let message = format!("a table or view '{}' is already declared", name.value);
            return Err(self.text.error(SqlErrorKind::Duplicate, name.span.start, message));
        }
        let before = self.queries;
        self.query(&mut query)?;
        let queries = self.queries - before + 1;
        self.named.push(Named { name: name.value, columns, query, queries });
        Ok(())
    }

    /// Whether this name is a view's, which can be read but not written.
    pub(crate) fn is_view(&self, tables: &Tables, name: &str) -> bool {
        tables.get(name).is_none() && self.named.iter().any(|named| named.name == name)
    }

    /// Replaces all names in a query.
    pub(crate) fn query(&mut self, query: &mut Query) -> Result<(), SqlError> {
        let outer = self.named.len();
        let result = match query.with.take() {
            Some(with) => self.with(with),
            None => Ok(()),
        };
        let result = result.and_then(|()| self.body(&mut query.body));
        self.named.truncate(outer);
        result
    }

    fn with(&mut self, with: With) -> Result<(), SqlError> {
        let at = with.with_token.0.span.start;
        if with.recursive {
            return Err(self.text.unsupported("WITH RECURSIVE", at));
        }
        let mut names: Vec<String> = Vec::new();
        for Cte { alias, mut query, from, materialized, closing_paren_token: _ } in with.cte_tables {
            let others = [(materialized.is_some(), "MATERIALIZED"), (from.is_some(), "FROM behind a query of WITH")];
            let others = others.into_iter().find_map(|(is_there, what)| is_there.then_some(what));
            if let Some(what) = others.or_else(|| clauses::of_alias(&alias)) {
                return Err(self.text.unsupported(what, alias.name.span.start));
            }
            if names.contains(&alias.name.value) {
                let message = format!("WITH declares '{}' twice", alias.name.value);
                return Err(self.text.error(SqlErrorKind::Duplicate, alias.name.span.start, message));
            }
            let before = self.queries;
            self.query(&mut query)?;
            let queries = self.queries - before + 1;
            names.push(alias.name.value.clone());
            let columns = alias.columns.into_iter().map(|column| column.name).collect();
            self.named.push(Named { name: alias.name.value, columns, query, queries });
        }
        Ok(())
    }

    fn body(&mut self, body: &mut SetExpr) -> Result<(), SqlError> {
        match body {
            SetExpr::Select(select) => select.from.iter_mut().try_for_each(|from| self.table_with_joins(from)),
            SetExpr::Query(query) => self.query(query),
            SetExpr::SetOperation { left, right, .. } => {
                self.body(left)?;
                self.body(right)
            }
            _ => Ok(()),
        }
    }

    fn table_with_joins(&mut self, from: &mut TableWithJoins) -> Result<(), SqlError> {
        self.relation(&mut from.relation)?;
        from.joins.iter_mut().try_for_each(|join| self.relation(&mut join.relation))
    }

    fn relation(&mut self, relation: &mut TableFactor) -> Result<(), SqlError> {
        match relation {
            TableFactor::Derived { subquery, .. } => self.query(subquery),
            TableFactor::NestedJoin { table_with_joins, .. } => self.table_with_joins(table_with_joins),
            TableFactor::Table { name, alias, .. } => {
                let Some(derived) = self.derived(name, alias.as_ref())? else { return Ok(()) };
                if let Some(what) = clauses::of_relation(relation) {
                    return Err(self.text.unsupported(what, relation.span().start));
                }
                *relation = derived;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The derived table in the place of a name.
    fn derived(&mut self, name: &ObjectName, alias: Option<&TableAlias>) -> Result<Option<TableFactor>, SqlError> {
        let [ObjectNamePart::Identifier(ident)] = name.0.as_slice() else { return Ok(None) };
        let Some(named) = self.named.iter().rfind(|named| named.name == ident.value) else { return Ok(None) };
        self.queries += named.queries;
        if self.queries > MOST_QUERIES {
            let message = format!("views and WITH, put in place, make more than {MOST_QUERIES} queries");
            return Err(self.text.error(SqlErrorKind::Invalid, ident.span.start, message));
        }
        let columns = named.columns.iter().cloned().map(|name| TableAliasColumnDef { name, data_type: None });
        let alias = match alias {
            Some(alias) if !alias.columns.is_empty() => alias.clone(),
            Some(alias) => TableAlias { columns: columns.collect(), ..alias.clone() },
            None => TableAlias { explicit: true, name: ident.clone(), columns: columns.collect(), at: None },
        };
        let subquery = named.query.clone();
        Ok(Some(TableFactor::Derived { lateral: false, subquery, alias: Some(alias), sample: None }))
    }
}

/// `SELECT a, b, a + b AS c FROM t`: the columns of a table in the order declared, or an expression over them.
pub(crate) fn declared_query(table: &CreateTable, over: Option<&Expr>) -> Result<Box<Query>, ParserError> {
    let mut items = Vec::new();
    let mut computed = table.computed.iter().peekable();
    for position in 0..=table.columns.len() {
        while let Some(column) = computed.next_if(|column| column.after == position) {
            let (expr, alias) = (column.expression.clone(), quoted(&column.name));
            items.push(SelectItem::ExprWithAlias { expr, alias });
        }
        if let Some(column) = table.columns.get(position) {
            items.push(SelectItem::UnnamedExpr(Expr::Identifier(quoted(&column.name))));
        }
    }
    let mut query = query_without_places("SELECT a FROM a")?;
    if let SetExpr::Select(select) = query.body.as_mut() {
        let Select { projection, from, .. } = select.as_mut();
        *projection = items;
        if let Some(TableWithJoins { relation: TableFactor::Table { name, .. }, .. }) = from.first_mut() {
            *name = ObjectName(vec![ObjectNamePart::Identifier(quoted(&table.name))]);
        }
    }
    let Some(over) = over else { return Ok(query) };
    let mut outer = query_without_places("SELECT a FROM (SELECT a FROM a) AS a")?;
    if let SetExpr::Select(select) = outer.body.as_mut() {
        select.projection = vec![SelectItem::UnnamedExpr(over.clone())];
        if let Some(TableWithJoins { relation: TableFactor::Derived { subquery, alias, .. }, .. }) =
            select.from.first_mut()
        {
            *subquery = query;
            *alias = Some(TableAlias { explicit: true, name: quoted(&table.name), columns: Vec::new(), at: None });
        }
    }
    Ok(outer)
}

/// A name as it is, with its place.
pub(crate) fn quoted(name: &Ident) -> Ident {
    Ident { quote_style: Some('`'), ..name.clone() }
}

/// Text of ours, whose places must not be taken for places in the user's.
fn query_without_places(sql: &str) -> Result<Box<Query>, ParserError> {
    let tokens: Vec<Token> = Tokenizer::new(&DIALECT, sql).tokenize()?;
    Parser::new(&DIALECT).with_tokens(tokens).parse_query()
}
