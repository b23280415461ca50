//! The configured source guard of an interface: the addresses from which its guest may send.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use toml::Spanned;
use toml::de::DeValue;
use utoipa::ToSchema;
use weir_fabric::SourceGuard;
use weir_limits::SOURCE_ADDRESSES_MAX;

use super::error::Fault;
use super::keys::{Change, keys};
use super::section::{self, FromToml};
use super::values::{GuardMode, ValueError, schema_as};

keys! {
    /// The source guard: the addresses from which a guest may send.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
    #[serde(default, deny_unknown_fields)]
    pub struct Guarding {
        /// The mode of the guard: off, or the source of the guest's addresses.
        mode: GuardMode => Option<GuardMode> = GuardMode::Off, [named("source_guard"), of_each_xen(EACH_ITS_OWN)];
        /// The addresses and prefixes that the guest may send from.
        addresses: Addresses => Change<Addresses> = Addresses::default(), [of_each_xen(EACH_ITS_OWN)];
        /// Whether the guest may send router advertisements and DHCP answers.
        router: bool => Option<bool> = false, [of_each_xen(EACH_ITS_OWN)];
    }

    /// Changes of the guard by `weir vif set`. Without a guard there are no addresses.
    #[derive(Debug, Clone)]
    pub struct GuardChanges;
}

/// Advice for Xen guests, which cannot all have the same addresses.
const EACH_ITS_OWN: &str =
    "each guest has its own: in a table [xen-vif.\"NAME.N\"], or by `weir vif set`";

/// Addresses and prefixes of a guest, at most [`SOURCE_ADDRESSES_MAX`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<String>", into = "Vec<String>")]
pub struct Addresses(Vec<IpNet>);

impl Addresses {
    /// The addresses, each as a prefix.
    pub fn as_slice(&self) -> &[IpNet] {
        &self.0
    }

    fn of(texts: &[&str]) -> Result<Self, ValueError> {
        if texts.is_empty() || texts.len() > SOURCE_ADDRESSES_MAX {
            let max = SOURCE_ADDRESSES_MAX as u64;
            let value = format!("{} addresses", texts.len());
            return Err(ValueError::OutOfRange { min: 1, max, value });
        }
        texts.iter().map(|text| address(text)).collect::<Result<_, _>>().map(Self)
    }
}

/// An address, or a prefix.
fn address(text: &str) -> Result<IpNet, ValueError> {
    let net = match text.parse::<IpAddr>() {
        Ok(address) => IpNet::from(address),
        Err(_) => text.parse::<IpNet>().map_err(|_| ValueError::Quantity {
            value: text.into(),
            expected: "an address or a prefix, such as \"10.0.0.5\" or \"fd00::/64\"",
        })?,
    };
    // A user who writes 10.0.0.5/24 rarely means that the guest has the whole network.
    if net.trunc() != net {
        return Err(ValueError::HostBits { value: text.into(), network: net.trunc().to_string() });
    }
    let address = net.addr();
    let is_broadcast = address == IpAddr::from([255; 4]);
    if address.is_multicast() || is_broadcast || address.is_unspecified() && net.prefix_len() > 8 {
        return Err(ValueError::AddressNotUnicast { value: text.into() });
    }
    Ok(net)
}

impl TryFrom<Vec<String>> for Addresses {
    type Error = ValueError;
    fn try_from(texts: Vec<String>) -> Result<Self, ValueError> {
        if texts.is_empty() {
            return Ok(Self::default());
        }
        Self::of(&texts.iter().map(String::as_str).collect::<Vec<_>>())
    }
}

schema_as!(Addresses, Vec<String>);

impl From<Addresses> for Vec<String> {
    fn from(addresses: Addresses) -> Self {
        addresses.0.iter().map(shown).collect()
    }
}

impl FromStr for Addresses {
    type Err = ValueError;
    /// Reads addresses with commas between them.
    fn from_str(text: &str) -> Result<Self, ValueError> {
        Self::of(&text.split(',').map(str::trim).collect::<Vec<_>>())
    }
}

impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0.iter().map(shown).collect::<Vec<_>>().join(", "))
    }
}

/// The text of a prefix. A single address is shown without a prefix length.
fn shown(net: &IpNet) -> String {
    match net.prefix_len() == net.max_prefix_len() {
        true => net.addr().to_string(),
        false => net.to_string(),
    }
}

impl FromToml for Addresses {
    fn from_toml(value: &Spanned<DeValue<'_>>) -> Result<Self, section::Fault> {
        let expected = "addresses in brackets, such as [\"10.0.0.5\", \"fd00::5\"]";
        let fault = |error| section::Fault::new(value, error);
        match value.get_ref() {
            DeValue::String(text) => text.parse().map_err(fault),
            DeValue::Array(items) => {
                let text =
                    |item: &'_ Spanned<DeValue<'_>>| item.get_ref().as_str().map(str::to_owned);
                let texts: Option<Vec<_>> = items.iter().map(text).collect();
                let found = "an array of something else";
                let texts =
                    texts.ok_or_else(|| fault(ValueError::WrongType { expected, found }))?;
                let texts: Vec<_> = texts.iter().map(String::as_str).collect();
                Self::of(&texts).map_err(fault)
            }
            other => Err(fault(ValueError::WrongType { expected, found: other.type_str() })),
        }
    }
}

impl Guarding {
    /// Addresses that no other guest may have: the configured single addresses, but not prefixes.
    pub fn own_addresses(&self) -> impl Iterator<Item = IpAddr> {
        let asked = self.addresses.as_slice().iter().filter(|_| self.mode != GuardMode::Off);
        asked.filter(|net| net.prefix_len() == net.max_prefix_len()).map(IpNet::addr)
    }

    /// Keys of the guard that do not fit each other.
    pub(super) fn faults(&self, mac_check: bool) -> Vec<Fault> {
        let fault = |keys, reason: &str, help: &str| Fault {
            keys,
            reason: reason.into(),
            help: help.into(),
        };
        let (is_on, has_addresses) = (self.mode != GuardMode::Off, !self.addresses.0.is_empty());
        let mut faults = Vec::new();
        if has_addresses && !is_on {
            let reason = "`addresses` has no effect without `source_guard`";
            let help = "add `source_guard = \"configured\"`";
            faults.push(fault(["addresses", "source_guard"], reason, help));
        }
        if self.mode == GuardMode::Configured && !has_addresses {
            let reason = "`source_guard = \"configured\"` without `addresses`";
            let help = "add for example `addresses = [\"10.0.0.5\", \"fd00::5\"]`";
            faults.push(fault(["source_guard", "addresses"], reason, help));
        }
        if is_on && !mac_check {
            let reason = "`source_guard` with `mac_check = false`";
            let help = "ARP and neighbour discovery are compared with the guest's MAC address: remove `mac_check = false`";
            faults.push(fault(["source_guard", "mac_check"], reason, help));
        }
        faults
    }

    /// The guard for the engine. Addresses that DHCP gave under the guard `before` stay valid.
    pub fn guard(&self, before: Option<&SourceGuard>) -> Option<Arc<SourceGuard>> {
        let guard = || SourceGuard::new(self.addresses.0.clone(), self.router);
        match self.mode {
            GuardMode::Off => None,
            GuardMode::Configured => Some(Arc::new(guard())),
            GuardMode::Snooped => Some(Arc::new(guard().snooping(before))),
        }
    }
}

impl GuardChanges {
    /// Clears the addresses of a guard that is turned off.
    fn settle(&mut self, _: &mut Guarding) {
        if (self.mode, &self.addresses) == (Some(GuardMode::Off), &Change::Keep) {
            self.addresses = Change::Clear;
        }
    }
}

#[cfg(test)]
mod tests;
