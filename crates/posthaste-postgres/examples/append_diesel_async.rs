//! Appends in a transaction of diesel-async: a rollback leaves nothing, a commit leaves the order and its
//! event.
//!
//! ```sh
//! export DB=postgres://postgres@127.0.0.1/shop
//! cargo run -p posthaste-postgres --features adapter-examples --example append_diesel_async
//! ```

use diesel::prelude::*;
use diesel::result::Error as DieselError;
use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl};
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

pub(crate) async fn run(url: &str) -> Result<(), Box<dyn Error>> {
    let mut conn = AsyncPgConnection::establish(url).await?;
    diesel::sql_query("create table if not exists orders (id uuid primary key)").execute(&mut conn).await?;

    let regretted = conn
        .transaction(async |conn| {
            place(conn, Uuid::now_v7()).await?;
            Err::<(), _>(DieselError::RollbackTransaction) // neither the order nor its event
        })
        .await;
    assert_eq!(regretted, Err(DieselError::RollbackTransaction));

    conn.transaction(async |conn| place(conn, Uuid::now_v7()).await).await?; // both
    Ok(())
}

async fn place(conn: &mut AsyncPgConnection, order: Uuid) -> QueryResult<()> {
    diesel::insert_into(orders::table).values(orders::id.eq(order)).execute(conn).await?;
    let event = Event::new("orders.placed", format!(r#"{{"order":"{order}"}}"#))
        .with_key(order)
        .with_content_type("application/json");
    posthaste_postgres::diesel_async::append(conn, &event).await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    run(&std::env::var("DB")?).await
}
