//! The switch's keeper: what of its interfaces outlives weir.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex};

use weir_config::{Config, PortName};
use weir_engine::lock;
use weir_keeper::{Keeper, Taken};
use weir_limits::QUEUE_PAIRS_MAX;
use weir_port_vhost::Keep;

use super::SwitchError;
use crate::helper::Hands;
use crate::unix_socket::{BoundListener, FileId};

/// Begins the name of a listening socket, behind its interface's; device and inode of its file follow.
const LISTENER: &str = "listen.";

/// The same of a TAP's queue, whose number follows.
const TAP: &str = "tap.";

/// Descriptors that outlive weir. Dropping it has them kept no longer.
pub(super) struct Kept {
    keeper: Arc<Keeper>,
    keys: Vec<String>,
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.keys.iter().for_each(|key| self.keeper.remove(key));
    }
}

/// The keeper, where there is to be one.
#[derive(Default)]
pub struct Keeping {
    keeper: Option<Arc<Keeper>>,
    /// What another weir has left there, and no port has taken yet.
    taken: Mutex<Taken>,
}

impl Keeping {
    /// Takes what another weir has left with the keeper of this configuration, if it has one.
    pub fn take(config: &Config, hands: &Hands) -> Result<Self, SwitchError> {
        let Some(path) = &config.switch.keeper else { return Ok(Self::default()) };
        let taken = Keeper::take(hands.dial_keeper(path)).map_err(SwitchError::Start)?;
        let (keeper, taken) = taken;
        Ok(Self { keeper: Some(Arc::new(keeper)), taken: Mutex::new(taken) })
    }

    /// Looks for the keeper from here on, where there is none.
    pub(super) fn start(&self) -> Result<(), SwitchError> {
        match &self.keeper {
            Some(keeper) => keeper.start().map_err(SwitchError::Start),
            None => Ok(()),
        }
    }

    /// All interfaces are there: what none has taken is nobody's.
    pub(super) fn end_taking(&self) {
        let left = std::mem::take(&mut *lock(&self.taken));
        if let Some(keeper) = &self.keeper {
            left.keys().for_each(|name| keeper.remove(name));
        }
    }

    /// The place of an interface. It can do without.
    pub(super) fn place(&self, name: &PortName) -> Option<Keep> {
        let keeper = self.keeper.as_ref()?;
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
        if let Some(keeper) = &self.keeper {
            keeper.remove(&key);
        }
        Some((socket.into(), file?))
    }

    /// Keeps the socket on which an interface listens.
    pub(super) fn keep_listener(&self, name: &PortName, bound: &BoundListener) -> Option<Kept> {
        let keeper = Arc::clone(self.keeper.as_ref()?);
        let (device, inode) = bound.file();
        let key = format!("{name}/{LISTENER}{device}.{inode}");
        keeper.store(&key, Arc::new(bound.listener().try_clone().ok()?.into()));
        Some(Kept { keeper, keys: vec![key] })
    }

    /// The queues that a TAP had under another weir, in their order.
    pub(super) fn tap(&self, name: &PortName) -> Vec<OwnedFd> {
        let mut taken = lock(&self.taken);
        let queues = (0..QUEUE_PAIRS_MAX).map(|queue| format!("{name}/{TAP}{queue}"));
        queues.map_while(|key| taken.remove(&key)).collect()
    }

    /// Keeps the queues of a TAP, and so the TAP itself.
    pub(super) fn keep_tap(&self, name: &PortName, queues: &[OwnedFd]) -> Option<Kept> {
        let keeper = Arc::clone(self.keeper.as_ref()?);
        let keys: Vec<_> =
            (0..QUEUE_PAIRS_MAX).map(|queue| format!("{name}/{TAP}{queue}")).collect();
        for (nth, key) in keys.iter().enumerate() {
            match queues.get(nth).and_then(|queue| queue.as_fd().try_clone_to_owned().ok()) {
                Some(queue) => keeper.store(key, Arc::new(queue)),
                None => keeper.remove(key),
            }
        }
        Some(Kept { keeper, keys })
    }

    /// The interface is gone.
    pub(super) fn forget(&self, name: &PortName) {
        if let Some(keeper) = &self.keeper {
            Keep::forget(keeper, name.as_str());
        }
    }
}
