//! Messages to a service manager: systemd's `sd_notify` protocol, datagrams of `NAME=value` lines.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// The service manager that started this process.
#[derive(Debug)]
pub struct ServiceManager {
    socket: UnixDatagram,
    address: SocketAddr,
    /// Time within which it wants to hear from its service.
    watchdog: Option<Duration>,
}

impl ServiceManager {
    /// `socket`: value of `NOTIFY_SOCKET`, a path, or a name of the abstract namespace after an `@`. `watchdog`: value of
    /// `WATCHDOG_USEC`, in microseconds.
    ///
    /// # Errors
    /// An address that is none, a socket that cannot be made.
    pub fn new(socket: &str, watchdog: Option<&str>) -> io::Result<ServiceManager> {
        let address = match socket.strip_prefix('@') {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(socket)?,
        };
        let watchdog = watchdog.and_then(|text| text.trim().parse().ok()).filter(|micros| *micros > 0);
        let socket = UnixDatagram::unbound()?;
        // A manager that does not read must not stop the supervisor.
        socket.set_nonblocking(true)?;
        Ok(ServiceManager { socket, address, watchdog: watchdog.map(Duration::from_micros) })
    }

    /// Half of the time within which the manager wants to hear from its service.
    pub fn interval(&self) -> Option<Duration> {
        self.watchdog.map(|time| time / 2)
    }

    /// The service has begun its work.
    ///
    /// # Errors
    /// The system's.
    pub fn ready(&self) -> io::Result<()> {
        self.send("READY=1")
    }

    /// The service lives.
    ///
    /// # Errors
    /// The system's.
    pub fn alive(&self) -> io::Result<()> {
        self.send("WATCHDOG=1")
    }

    /// The service has begun to end.
    ///
    /// # Errors
    /// The system's.
    pub fn stopping(&self) -> io::Result<()> {
        self.send("STOPPING=1")
    }

    /// A line that `systemctl status` shows.
    ///
    /// # Errors
    /// The system's.
    pub fn status(&self, text: &str) -> io::Result<()> {
        let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        self.send(&format!("STATUS={line}"))
    }

    fn send(&self, text: &str) -> io::Result<()> {
        match self.socket.send_to_addr(text.as_bytes(), &self.address) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(()),
            sent => sent.map(|_| ()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manager_hears_of_its_service() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("notify");
        let listener = UnixDatagram::bind(&path).unwrap();
        let manager = ServiceManager::new(path.to_str().unwrap(), Some("3000000")).unwrap();
        assert_eq!(manager.interval(), Some(Duration::from_millis(1500)));
        manager.ready().unwrap();
        manager.status("step 3\nREADY=0").unwrap();
        manager.alive().unwrap();
        manager.stopping().unwrap();
        let heard: Vec<String> = (0..4)
            .map(|_| {
                let mut bytes = [0; 256];
                let length = listener.recv(&mut bytes).unwrap();
                String::from_utf8(bytes[..length].to_vec()).unwrap()
            })
            .collect();
        assert_eq!(heard, ["READY=1", "STATUS=step 3 READY=0", "WATCHDOG=1", "STOPPING=1"]);
    }

    #[test]
    fn names_of_the_abstract_namespace_are_addresses() {
        let name = format!("bessemer-notify-{}", std::process::id());
        let listener = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        let manager = ServiceManager::new(&format!("@{name}"), Some("")).unwrap();
        assert_eq!(manager.interval(), None);
        manager.ready().unwrap();
        let mut bytes = [0; 16];
        assert_eq!(listener.recv(&mut bytes).unwrap(), 7);
    }
}
