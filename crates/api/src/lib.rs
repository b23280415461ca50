//! weir's HTTP API: the requests of `weir` and other programs to a running switch, and the description of its state.
//!
//! | module | what |
//! |---|---|
//! | [`server`] | one thread that reads and writes sockets, and a few that carry out requests |
//! | `places` | the limit of connections, and the choice of the one that has to end |
//! | `work` | the threads that ask the switch |
//! | `routes` | each path and method, with its types; the OpenAPI document |
//! | `api` | the parts of every route: callers, bodies and answers |
//! | `events` | events for their readers, and no work without readers |
//! | `serving` | the API's settings, made ready while weir has privileges |
//! | `metrics` | the counters for Prometheus |
//! | `page` | the page for a browser |
//! | [`access`] | the rights to read and to write; protection against other sites' pages |
//! | [`problem`] | refusals |
//! | [`client`] | the other side, blocking |
//!
//! ```sh
//! curl --unix-socket /run/weir/control.sock http://weir/v1/switch
//! ```

#![forbid(unsafe_code)]

pub mod access;
mod api;
pub mod client;
mod events;
mod metrics;
mod page;
mod places;
pub mod problem;
mod routes;
pub mod server;
mod serving;
mod work;

#[cfg(test)]
mod tests;

pub use access::{Access, Token, TokenError};
pub use client::{Client, ClientError};
pub use problem::Problem;
pub use routes::{ConfigurationSource, ConfigurationText, Done, Reloaded, Stages, openapi};
pub use server::ApiServer;
pub use serving::{Serving, ServingError};
