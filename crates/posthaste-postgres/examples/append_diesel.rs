//! Appends in a transaction of diesel: a rollback leaves nothing, a commit leaves the order and its event.
//!
//! ```sh
//! export DB=postgres://postgres@127.0.0.1/shop
//! cargo run -p posthaste-postgres --features adapter-examples --example append_diesel
//! ```

use diesel::prelude::*;
use diesel::result::Error as DieselError;
use posthaste::Event;
use std::error::Error;
use uuid::Uuid;

diesel::table! {
    /// The shop's own data.
    orders (id) {
        /// Drawn by the shop.
        id -> Uuid,
    }
}

pub(crate) fn run(url: &str) -> Result<(), Box<dyn Error>> {
    let mut conn = PgConnection::establish(url)?;
    diesel::sql_query("create table if not exists orders (id uuid primary key)").execute(&mut conn)?;

    let regretted = conn.transaction(|conn| {
        place(conn, Uuid::now_v7())?;
        Err::<(), _>(DieselError::RollbackTransaction) // neither the order nor its event
    });
    assert_eq!(regretted, Err(DieselError::RollbackTransaction));

    conn.transaction(|conn| place(conn, Uuid::now_v7()))?; // both
    Ok(())
}

fn place(conn: &mut PgConnection, order: Uuid) -> QueryResult<()> {
    diesel::insert_into(orders::table).values(orders::id.eq(order)).execute(conn)?;
    let event = Event::new("orders.placed", format!(r#"{{"order":"{order}"}}"#))
        .with_key(order)
        .with_content_type("application/json");
    posthaste_postgres::diesel::append(conn, &event)?;
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    run(&std::env::var("DB")?)
}
