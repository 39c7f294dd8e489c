//! The intake and the tenants on real servers: directly, behind a pooler in transaction mode, and in a schema
//! of another name.

mod cut;
mod fixture;
mod lost;
mod trouble;

use fixture::IntakeGround;

posthaste_testkit::intake_suite!(direct, IntakeGround::make);
posthaste_testkit::intake_suite!(pooled, IntakeGround::pooled);
posthaste_testkit::intake_suite!(other_schema, IntakeGround::elsewhere);
