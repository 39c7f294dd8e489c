//! What others reach over HTTP, and the one layer that all of it stands on.
//!
//! ```text
//! socket.rs   who is let in, for how long (G7)       pages.rs    /metrics, /livez, /readyz
//! crowd.rs    how many at once, and who has to go    metrics.rs  the recorder behind /metrics
//! tls.rs      certificates that change under load    token.rs    how tokens look and are compared
//! problem.rs  what is answered when something is not
//! ```
//!
//! axum on hyper, HTTP/1.1 only. A server of our own was three pages long and wrong: sixteen slow clients
//! kept `/livez` silent, and bodies, keep-alive and TLS would each have been a project. HTTP/2 is left out:
//! nothing here sends enough at once to need it, and its streams would have to be bounded as well.
//!
//! Health and metrics have a listener of their own. It needs no token, so what it shows carries names and
//! codes and never the text of an event or of a broker.

mod crowd;
mod metrics;
mod pages;
mod problem;
mod socket;
mod tls;
pub(crate) mod token;

pub(crate) use metrics::{install_metrics, upkeep};
pub(crate) use pages::pages;
pub(crate) use problem::ApiProblem;
pub(crate) use socket::{ConnectionEnd, Listening, bind, serve};
pub(crate) use tls::Certificate;
