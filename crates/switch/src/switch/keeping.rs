//! The switch's keeper: what of its interfaces outlives weir.

use std::io;
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex, OnceLock};

use weir_config::PortName;
use weir_engine::lock;
use weir_keeper::{Dial, Keeper, Taken};
use weir_port_vhost::Keep;

use crate::unix_socket::{BoundListener, FileId};

/// Begins the name of a listening socket, behind its interface's; device and inode of its file follow.
const LISTENER: &str = "listen.";

/// A listening socket that outlives weir. Dropping it has it kept no longer.
pub(super) struct KeptListener {
    keeper: Arc<Keeper>,
    key: String,
}

impl Drop for KeptListener {
    fn drop(&mut self) {
        self.keeper.remove(&self.key);
    }
}

/// The keeper, where there is to be one.
#[derive(Default)]
pub(super) struct Kept {
    keeper: OnceLock<Arc<Keeper>>,
    /// What another weir has left there, and no interface has taken yet.
    taken: Mutex<Taken>,
}

impl Kept {
    /// Takes what another weir has left, and looks for the keeper from here on.
    pub(super) fn begin(&self, dial: Dial) -> io::Result<()> {
        let (keeper, taken) = Keeper::take(dial)?;
        keeper.start()?;
        *lock(&self.taken) = taken;
        let _ = self.keeper.set(Arc::new(keeper));
        Ok(())
    }

    /// All interfaces are there: what none has taken is nobody's.
    pub(super) fn end_taking(&self) {
        let left = std::mem::take(&mut *lock(&self.taken));
        if let Some(keeper) = self.keeper.get() {
            left.keys().for_each(|name| keeper.remove(name));
        }
    }

    /// The place of an interface. It can do without.
    pub(super) fn place(&self, name: &PortName) -> Option<Keep> {
        let keeper = self.keeper.get()?;
        let mut taken = lock(&self.taken);
        match Keep::new(Arc::clone(keeper), name.as_str(), &mut taken) {
            Ok(keep) => Some(keep),
            Err(error) => {
                tracing::warn!(vif = %name, %error, "after a SIGKILL of weir this front end has to connect again");
                None
            }
        }
    }

    /// The socket on which an interface listened under another weir, and its file.
    pub(super) fn listener(&self, name: &PortName) -> Option<(UnixListener, FileId)> {
        let prefix = format!("{name}/{LISTENER}");
        let mut taken = lock(&self.taken);
        let key = taken.keys().find(|key| key.starts_with(&prefix))?.clone();
        let socket = taken.remove(&key)?;
        let id = key.strip_prefix(&prefix)?.split_once('.');
        let file = id.and_then(|(device, inode)| Some((device.parse().ok()?, inode.parse().ok()?)));
        if let Some(keeper) = self.keeper.get() {
            keeper.remove(&key);
        }
        Some((socket.into(), file?))
    }

    /// Keeps the socket on which an interface listens.
    pub(super) fn keep_listener(
        &self,
        name: &PortName,
        bound: &BoundListener,
    ) -> Option<KeptListener> {
        let keeper = Arc::clone(self.keeper.get()?);
        let (device, inode) = bound.file();
        let key = format!("{name}/{LISTENER}{device}.{inode}");
        keeper.store(&key, Arc::new(bound.listener().try_clone().ok()?.into()));
        Some(KeptListener { keeper, key })
    }

    /// The interface is gone.
    pub(super) fn forget(&self, name: &PortName) {
        if let Some(keeper) = self.keeper.get() {
            Keep::forget(keeper, name.as_str());
        }
    }
}
