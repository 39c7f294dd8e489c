//! Appends in a transaction of sqlx: a rollback leaves nothing, a commit leaves the order and its event.
//!
//! ```sh
//! export DB=postgres://postgres@127.0.0.1/shop
//! cargo run -p posthaste-postgres --features adapter-examples --example append_sqlx
//! ```

use posthaste::Event;
use sqlx::{PgPool, Postgres, Transaction};
use std::error::Error;
use uuid::Uuid;

pub(crate) async fn run(url: &str) -> Result<(), Box<dyn Error>> {
    let pool = PgPool::connect(url).await?;
    sqlx::query("create table if not exists orders (id uuid primary key)").execute(&pool).await?;

    let mut tx = pool.begin().await?;
    place(&mut tx, Uuid::now_v7()).await?;
    tx.rollback().await?; // neither the order nor its event

    let mut tx = pool.begin().await?;
    place(&mut tx, Uuid::now_v7()).await?;
    tx.commit().await?; // both
    Ok(())
}

async fn place(tx: &mut Transaction<'_, Postgres>, order: Uuid) -> Result<(), Box<dyn Error>> {
    sqlx::query("insert into orders (id) values ($1)").bind(order).execute(&mut **tx).await?;
    let event = Event::json("orders.placed", &serde_json::json!({ "order": order }))?.with_key(order);
    posthaste_postgres::sqlx::append(tx, &event).await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    run(&std::env::var("DB")?).await
}
