//! A vif's back end: its state in xenstore, and the actions that follow from it.
//!
//! | file | contents |
//! |---|---|
//! | `vifs.rs` | [`Vifs`]: finds vifs in xenstore and executes their back ends' decisions |
//! | `backend.rs` | [`Backend`]: one vif's state machine, pure |
//! | `keys.rs` | the keys of both ends in xenstore, parsed and bounded |

use std::io::{Read, Write};

use crate::hypervisor::DomainId;
use crate::store::{Client, StoreError};

mod backend;
mod keys;
mod vifs;

pub use backend::{Action, Backend, Seen, XenbusState};
pub use keys::{Credit, FrontKeys, KeyError, Offer, QueueKeys, RingKeys, VifKeys};
pub use vifs::{Serve, VifId, Vifs};

/// The suffix that a toolstack appends to the name of a domain while it migrates here.
const INCOMING: &str = "--incoming";

/// Returns the name of a domain; `None` if it has none that this domain may read. The key is the toolstack's.
pub fn domain_name<S: Read + Write>(
    client: &mut Client<S>,
    domain: DomainId,
) -> Result<Option<String>, StoreError> {
    let name = match client.read(&format!("/local/domain/{}/name", domain.0)) {
        Err(error) if error.name().is_some() => None,
        name => name?,
    };
    let name = name.and_then(|name| String::from_utf8(name).ok()).filter(|name| !name.is_empty());
    Ok(name.map(|name| name.strip_suffix(INCOMING).unwrap_or(&name).to_owned()))
}

/// Returns the device model's socket for the channel `name` of a guest; `None` if the guest has no
/// such channel with `connection=socket`. The keys are the toolstack's: no guest may write there.
pub fn channel_socket<S: Read + Write>(
    client: &mut Client<S>,
    domain: DomainId,
    name: &str,
) -> Result<Option<String>, StoreError> {
    let consoles = format!("backend/console/{}", domain.0);
    for console in client.directory(&consoles)? {
        let mut key = |key: &str| client.read(&format!("{consoles}/{console}/{key}"));
        if key("name")?.as_deref() == Some(name.as_bytes())
            && key("connection")?.as_deref() == Some(b"socket")
        {
            let path = key("path")?.and_then(|path| String::from_utf8(path).ok());
            return Ok(path.filter(|path| path.starts_with('/')));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests;
