//! Handing one row over, with its owners' own triggers, and taking it back.
//!
//! It must be a row that goes. Any other would not be marked, and the application would be the first to meet
//! a trigger that refuses the mark. Best is a row that waits now. If none does, one is made to wait again. If
//! that is refused or there is no row, one is made up. If the table refuses that too, nothing is known, and
//! `start` says so.

use super::{Handover, HandoverError};
use crate::claim::statements::handover::{COLUMNS, Column};
use crate::claim::statements::quoted;
use crate::error::{describe, store_error};
use tokio_postgres::types::Type;

impl Handover {
    /// Whether the last `start` could try the statement on a row.
    #[must_use]
    pub fn was_rehearsed(&self) -> bool {
        self.rehearsed
    }

    pub(super) async fn rehearse(&mut self) -> Result<(), HandoverError> {
        self.session.begin().await.map_err(store_error)?;
        let result = self.rehearse_in().await;
        self.session.rollback().await.map_err(store_error)?;
        self.rehearsed = result?;
        Ok(())
    }

    async fn rehearse_in(&mut self) -> Result<bool, HandoverError> {
        // To know that none waits may take a look at every row, so there is no bound but the statement's own.
        let sql = self.statements.one_that_goes(&self.place);
        let rows = self.session.client().query(&sql, &[]).await.map_err(|error| self.unwilling(error, ""))?;
        if let Some(row) = rows.first() {
            return self.try_on(row.get(0), "").await;
        }
        if let Some(sql) = self.statements.set_back(&self.place)
            && let Some(key) = self.prepared_row(&sql).await?
            && self.try_on(key, " that was made to wait again for it").await?
        {
            return Ok(true);
        }
        let columns = self.columns().await?;
        let sql = self.statements.made_up(&self.place, &columns);
        let key = match &sql {
            Some(sql) => self.prepared_row(sql).await?,
            None => None,
        };
        match key {
            Some(key) => self.try_on(key, " that was made up for it, because none waits in the table").await,
            // Without a row the server still checks names, types and rights.
            None => self.try_on_none().await.map(|()| false),
        }
    }

    /// Runs a statement that answers a row's key. What the table refuses here tells nothing about the mark.
    async fn prepared_row(&mut self, sql: &str) -> Result<Option<String>, HandoverError> {
        self.session.batch("savepoint rehearsal").await.map_err(store_error)?;
        match self.session.query(sql, &[]).await {
            Ok(rows) => Ok(rows.first().map(|row| row.get(0))),
            Err(error) if error.as_db_error().is_none() => Err(store_error(error).into()),
            Err(_) => {
                self.session.batch("rollback to savepoint rehearsal").await.map_err(store_error)?;
                Ok(None)
            }
        }
    }

    /// Hands the row over. Answers whether it went.
    async fn try_on(&mut self, key: String, row: &str) -> Result<bool, HandoverError> {
        let sql = self.statements.hand_over_try(&self.place);
        let went = self.session.execute(None, &sql, &[(&key, Type::TEXT)]).await;
        let went = went.map_err(|error| self.unwilling(error, row))?;
        // What is checked at the end of a transaction is checked now. A row that was made up may break a
        // reference.
        if !row.contains("made up") {
            let ended = self.session.batch("set constraints all immediate").await;
            ended.map_err(|error| self.unwilling(error, row))?;
        }
        Ok(went > 0)
    }

    async fn try_on_none(&mut self) -> Result<(), HandoverError> {
        let (sql, key) = (self.statements.hand_over_try(&self.place), None::<String>);
        let tried = self.session.execute(None, &sql, &[(&key, Type::TEXT)]).await;
        tried.map(drop).map_err(|error| self.unwilling(error, ""))
    }

    async fn columns(&mut self) -> Result<Vec<Column>, HandoverError> {
        let table = quoted(&self.place.table);
        let rows = self.session.query(COLUMNS, &[(&table, Type::TEXT)]).await.map_err(store_error)?;
        let column = |row: &tokio_postgres::Row| Column {
            name: row.get(0),
            kind: row.get(1),
            word: row.get(2),
            required: row.get(3),
        };
        Ok(rows.iter().map(column).collect())
    }

    fn unwilling(&self, error: tokio_postgres::Error, row: &str) -> HandoverError {
        if error.as_db_error().is_none() {
            return store_error(error).into();
        }
        HandoverError::Refused(format!(
            "{} refuses that a row is handed over: {}. It was tried on one row{row}, in a transaction that was rolled back: nothing was \
             changed",
            self.place.table,
            describe(&error)
        ))
    }
}
