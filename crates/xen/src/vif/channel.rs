//! Channels of a guest (`channel=[...]` of `xl`): additional consoles, which the device model
//! serves.

use std::io::{Read, Write};

use crate::hypervisor::DomainId;
use crate::store::{Client, StoreError};

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
