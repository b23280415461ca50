//! The source guard of an interface, as it is configured: from which addresses its guest may send.

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

use super::error::Problem;
use super::section::{Fault, FromToml, Section};
use super::settings::Change;
use super::values::{GuardMode, ValueError, schema_as};

/// From which addresses a guest may send.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Guarding {
    /// Whether anybody asks, and how the addresses are known.
    pub mode: GuardMode,
    /// Those that are configured.
    pub addresses: Addresses,
    /// The guest may advertise itself as a router, and answer DHCP.
    pub router: bool,
}

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
    // Who writes 10.0.0.5/24 rarely means that the guest has all of it.
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
    /// With commas between them.
    fn from_str(text: &str) -> Result<Self, ValueError> {
        Self::of(&text.split(',').map(str::trim).collect::<Vec<_>>())
    }
}

impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0.iter().map(shown).collect::<Vec<_>>().join(", "))
    }
}

/// A single address without the length of its prefix.
fn shown(net: &IpNet) -> String {
    match net.prefix_len() == net.max_prefix_len() {
        true => net.addr().to_string(),
        false => net.to_string(),
    }
}

impl FromToml for Addresses {
    fn from_toml(value: &Spanned<DeValue<'_>>) -> Result<Self, Fault> {
        let expected = "addresses in brackets, such as [\"10.0.0.5\", \"fd00::5\"]";
        let fault = |error| Fault { span: value.span(), error };
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

/// Settings of a source guard that do not go together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum GuardError {
    /// Nobody looks at the addresses.
    #[error("`addresses` has no effect without `source_guard`")]
    Unguarded,
    /// There is nothing that the guest could send from.
    #[error("`source_guard = \"configured\"` without `addresses`")]
    NoAddresses,
    /// ARP and neighbour discovery are compared with an address that nobody checks.
    #[error("`source_guard` with `mac_check = false`")]
    MacUnchecked,
}

impl GuardError {
    /// The key that does not fit.
    pub fn key(self) -> &'static str {
        match self {
            Self::Unguarded => "addresses",
            Self::NoAddresses | Self::MacUnchecked => "source_guard",
        }
    }

    /// What to do about it.
    pub fn help(self) -> &'static str {
        match self {
            Self::Unguarded => "add `source_guard = \"configured\"`",
            Self::NoAddresses => "add for example `addresses = [\"10.0.0.5\", \"fd00::5\"]`",
            Self::MacUnchecked => {
                "ARP and neighbour discovery are compared with the guest's MAC address: remove `mac_check = false`"
            }
        }
    }
}

impl Guarding {
    /// Addresses that are this guest's and nobody else's: those that are configured one by one.
    pub fn own_addresses(&self) -> impl Iterator<Item = IpAddr> {
        let asked = self.addresses.as_slice().iter().filter(|_| self.mode != GuardMode::Off);
        asked.filter(|net| net.prefix_len() == net.max_prefix_len()).map(IpNet::addr)
    }

    /// Whether the settings go together.
    pub fn check(&self, mac_check: bool) -> Result<(), GuardError> {
        let has_addresses = !self.addresses.0.is_empty();
        match self.mode {
            GuardMode::Off if has_addresses => Err(GuardError::Unguarded),
            GuardMode::Configured if !has_addresses => Err(GuardError::NoAddresses),
            GuardMode::Configured | GuardMode::Snooped if !mac_check => {
                Err(GuardError::MacUnchecked)
            }
            _ => Ok(()),
        }
    }

    /// What the engine is told; what DHCP has given under the guard `before` it goes on to count.
    pub fn guard(&self, before: Option<&SourceGuard>) -> Option<Arc<SourceGuard>> {
        let guard = || SourceGuard::new(self.addresses.0.clone(), self.router);
        match self.mode {
            GuardMode::Off => None,
            GuardMode::Configured => Some(Arc::new(guard())),
            GuardMode::Snooped => Some(Arc::new(guard().snooping(before))),
        }
    }

    /// Reads the keys of an interface's section, and says where they are if they do not go together.
    pub(super) fn from_section(
        section: &mut Section<'_>,
        mac_check: bool,
        problems: &mut Vec<Problem>,
    ) -> Self {
        let mode = section.value::<GuardMode>("source_guard", problems);
        let addresses = section.value::<Addresses>("addresses", problems);
        let bad = mode.is_none() && section.has("source_guard")
            || addresses.is_none() && section.has("addresses");
        let guarding = Self {
            mode: mode.unwrap_or_default(),
            addresses: addresses.unwrap_or_default(),
            router: section.take_or("router", false, problems),
        };
        if let (false, Err(error)) = (bad, guarding.check(mac_check)) {
            let span = section.place(error.key()).unwrap_or_default();
            problems.push(section.does_not_fit(span, error, error.help()));
        }
        guarding
    }
}

/// What `weir vif set` changes of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct GuardChanges {
    /// See [`Guarding::mode`]. Without a guard there are no addresses.
    pub mode: Option<GuardMode>,
    /// See [`Guarding::addresses`].
    pub addresses: Change<Addresses>,
    /// See [`Guarding::router`].
    pub router: Option<bool>,
}

impl GuardChanges {
    /// Reads the keys of a section.
    pub(super) fn from_section(section: &mut Section<'_>, problems: &mut Vec<Problem>) -> Self {
        Self {
            mode: section.value("source_guard", problems),
            addresses: section.take_or("addresses", Change::Keep, problems),
            router: section.value("router", problems),
        }
    }

    pub(super) fn apply(self, guarding: &mut Guarding) {
        guarding.mode = self.mode.unwrap_or(guarding.mode);
        guarding.router = self.router.unwrap_or(guarding.router);
        if self.mode == Some(GuardMode::Off) {
            guarding.addresses = Addresses::default();
        }
        match self.addresses {
            Change::Keep => {}
            Change::Clear => guarding.addresses = Addresses::default(),
            Change::Set(addresses) => guarding.addresses = addresses,
        }
    }
}

#[cfg(test)]
mod tests;
