//! Whether libvirt's QEMU may open weir's sockets. One that may not waits for ever, and `virsh start` with it.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::net::sockopt;
use weir_api::Client;
use weir_config::{SocketMode, SocketRole, VifConfig};
use weir_doctor::{Closed, Permissions, look_at_socket};

/// A directory that libvirt gives to the user and the group of its QEMU when it starts.
const OF_QEMU: &str = "/var/lib/libvirt/qemu";

/// The user of a domain's QEMU, and its groups.
pub(super) struct Account {
    pub(super) user: u32,
    pub(super) groups: Vec<u32>,
}

impl Account {
    /// The account of libvirt's QEMU; `None` if the domain `has_own` one, or libvirt was never started.
    pub(super) fn of_qemu(has_own: bool) -> Option<Self> {
        if has_own {
            return None;
        }
        let directory = std::fs::metadata(OF_QEMU).ok()?;
        let (user, group) = (directory.uid(), directory.gid());
        Some(Self { user, groups: weir_sandbox::groups(user, group) })
    }
}

/// The user and the group of sockets that weir makes: those of the process that listens for commands.
pub(super) fn owner_of_sockets(client: &Client) -> Option<(u32, u32)> {
    let peer = sockopt::socket_peercred(client.socket().ok()?).ok()?;
    Some((peer.uid.as_raw(), peer.gid.as_raw()))
}

/// The socket of an interface that a user may not open.
pub(super) struct Shut {
    pub(super) name: String,
    pub(super) closed: Closed,
    pub(super) user: u32,
}

/// Refuses sockets that `account` may not open. `owner` will have those that are not there yet.
pub(super) fn refuse_closed(
    vifs: &[VifConfig],
    account: &Account,
    owner: Option<(u32, u32)>,
) -> Result<(), Shut> {
    for vif in vifs.iter().filter(|vif| vif.mode == SocketRole::Server) {
        let mode = vif.socket_mode.unwrap_or(SocketMode::OWNER).bits();
        let unmade = owner.map(|(user, group)| Permissions { mode, user, group });
        let path: &Path = vif.socket.as_path();
        let Some(socket) = look_at_socket(path, unmade) else { continue };
        if let Some(closed) = socket.closed_to(path, account.user, &account.groups) {
            return Err(Shut { name: vif.name.to_string(), closed, user: account.user });
        }
    }
    Ok(())
}
