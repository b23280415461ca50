//! The elements of a domain's XML that connect it to an interface.

use weir_config::{PortName, SocketRole, VifConfig};

/// Seconds between two attempts of a VM monitor to reach weir.
pub const RECONNECT_SECS: u32 = 1;

/// The type of domains whose processors QEMU emulates.
pub const EMULATED: &str = "qemu";
/// The namespace of what libvirt hands to QEMU as it stands.
pub(super) const QEMU_NAMESPACE: &str = "http://libvirt.org/schemas/domain/qemu/1.0";

/// The elements that share the guest's memory, which weir maps.
pub fn memory() -> Vec<String> {
    let lines = [
        "<memoryBacking>",
        "  <source type='memfd'/>",
        "  <access mode='shared'/>",
        "</memoryBacking>",
    ];
    lines.map(Into::into).into()
}

/// The name of an interface's device in libvirt. Those that users choose begin with `ua-` and have no dots.
pub fn alias_of(name: &PortName) -> String {
    format!("ua-weir-{}", name.as_str().replace('.', "_"))
}

/// The elements that set the interrupt vectors of devices, by their names.
pub fn overrides(aliases: impl IntoIterator<Item = String>, vectors: u32) -> String {
    let devices = aliases.into_iter().map(|alias| override_of(&alias, vectors));
    let devices: String = devices.collect();
    format!("<qemu:override xmlns:qemu='{QEMU_NAMESPACE}'>\n{devices}</qemu:override>")
}

/// The part of [`overrides`] for one device.
pub(super) fn override_of(alias: &str, vectors: u32) -> String {
    format!(
        "  <qemu:device alias='{alias}'><qemu:frontend>\n    \
         <qemu:property name='vectors' type='unsigned' value='{vectors}'/>\n  \
         </qemu:frontend></qemu:device>\n"
    )
}

/// The device for an interface, by its own name or by the one that libvirt chooses.
pub fn interface(vif: &VifConfig, has_alias: bool) -> Vec<String> {
    let path = escaped(vif.socket.as_str());
    let mut xml = vec![
        "<interface type='vhostuser'>".into(),
        format!("  <mac address='{}'/>", vif.mac_or_derived()),
    ];
    if has_alias {
        xml.push(format!("  <alias name='{}'/>", alias_of(&vif.name)));
    }
    // libvirt names the VM's side of the socket, weir its own.
    match vif.mode {
        SocketRole::Server => {
            xml.push(format!("  <source type='unix' path='{path}' mode='client'>"));
            xml.push(format!("    <reconnect enabled='yes' timeout='{RECONNECT_SECS}'/>"));
            xml.push("  </source>".into());
        }
        SocketRole::Client => {
            xml.push(format!("  <source type='unix' path='{path}' mode='server'/>"));
        }
    }
    xml.push("  <model type='virtio'/>".into());
    let [rx_ring, tx_ring] = vif.ring_sizes();
    xml.push(format!(
        "  <driver queues='{}' rx_queue_size='{rx_ring}' tx_queue_size='{tx_ring}'/>",
        vif.queues
    ));
    if let Some(mtu) = vif.mtu {
        xml.push(format!("  <mtu size='{mtu}'/>"));
    }
    xml.push("</interface>".into());
    xml
}

/// `text` between quotes or elements.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('\'', "&apos;")
}
