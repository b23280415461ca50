//! weir's answers in a network at once and at any time, without the thread that gives them.

use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Instant;

use crate::desk::Woken;
use crate::leases::Lease;
use crate::service::Clerk;
use crate::{GatewayPort, LeaseSettings, NamesSettings};

/// A port, and the service that answers behind it.
pub struct Gateway {
    port: Arc<GatewayPort>,
    clerk: Clerk,
}

impl Gateway {
    /// Answers behind `port`.
    ///
    /// # Errors
    /// The thread for the resolver cannot be started.
    pub fn new(
        port: Arc<GatewayPort>,
        leases: LeaseSettings,
        names: Option<NamesSettings>,
    ) -> io::Result<Self> {
        let clerk = Clerk::new(&port, leases, names)?;
        Ok(Self { port, clerk })
    }

    /// The port.
    pub fn port(&self) -> &GatewayPort {
        &self.port
    }

    /// Answers the frames that wait, at this time of leases. Returns the number of answers that wait to be sent then.
    pub fn turn(&mut self, now_secs: u32) -> usize {
        let desk = Arc::clone(self.port.desk());
        if let Woken::Work(arrivals, told, changed) = desk.wait(Some(Instant::now())) {
            self.clerk.turn(&arrivals, told, changed, now_secs);
        }
        desk.unsent()
    }

    /// All leases, past ones included.
    pub fn leases(&self) -> impl Iterator<Item = (Ipv4Addr, &Lease)> {
        self.clerk.dhcp.iter().flat_map(|(dhcp, _)| dhcp.leases().iter())
    }
}
