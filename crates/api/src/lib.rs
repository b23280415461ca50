//! weir's HTTP API: what `weir` and other programs ask of a running switch, and how its state is described.
//!
//! | module | what |
//! |---|---|
//! | [`server`] | one thread that reads and writes sockets, and a few that do what is asked |
//! | `places` | how many connections there are, and which one goes when there are too many |
//! | `work` | the threads that ask the switch |
//! | `routes` | each path and method, with its types; the OpenAPI document |
//! | `events` | events for those who read them, and nothing while nobody does |
//! | `serving` | what the configuration says of it, made ready while weir has privileges |
//! | `metrics` | the counters for Prometheus |
//! | `page` | the page for a browser |
//! | `origin` | what another site may not have a browser do |
//! | [`access`] | who may read and who may write |
//! | [`problem`] | refusals |
//! | [`client`] | the other side, blocking |
//!
//! ```sh
//! curl --unix-socket /run/weir/control.sock http://weir/v1/switch
//! ```

#![forbid(unsafe_code)]

pub mod access;
pub mod client;
mod client_socket;
mod events;
mod metrics;
mod origin;
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
