//! What stands for the stores in a program that reaches none: nothing is made of this type.

use crate::{Object, Put, RemoteError, RemoteOptions};
use std::convert::Infallible;
use std::io;
use std::ops::Range;

/// The stores of some options; see the feature `remote`.
#[derive(Debug)]
pub struct Stores(Infallible);

impl Stores {
    /// Refuses the address.
    ///
    /// # Errors
    /// Always: [`RemoteError::NotBuilt`].
    pub fn open(url: &str, _: RemoteOptions) -> Result<Stores, RemoteError> {
        Err(RemoteError::NotBuilt(url.into()))
    }

    /// How files are reached.
    pub fn options(&self) -> &RemoteOptions {
        match self.0 {}
    }

    /// One object.
    ///
    /// # Errors
    /// None: there are no stores.
    pub fn stat(&self, _: &str) -> Result<Object, RemoteError> {
        match self.0 {}
    }

    /// All objects below a prefix.
    ///
    /// # Errors
    /// None: there are no stores.
    pub fn list(&self, _: &str) -> Result<Vec<Object>, RemoteError> {
        match self.0 {}
    }

    /// Bytes of an object.
    ///
    /// # Errors
    /// None: there are no stores.
    pub fn read(&self, _: &Object, _: Range<u64>) -> Result<Vec<u8>, RemoteError> {
        match self.0 {}
    }

    /// Uploads a file.
    ///
    /// # Errors
    /// None: there are no stores.
    pub fn put(
        &self,
        _: &str,
        _: u64,
        _: &mut dyn FnMut(u64, &mut [u8]) -> io::Result<()>,
        _: &mut dyn FnMut(u64),
    ) -> Result<(), RemoteError> {
        match self.0 {}
    }

    /// Makes a small object that must not exist.
    ///
    /// # Errors
    /// None: there are no stores.
    pub fn put_if_absent(&self, _: &str, _: &[u8]) -> Result<Put, RemoteError> {
        match self.0 {}
    }

    /// All bytes of a small object.
    ///
    /// # Errors
    /// None: there are no stores.
    pub fn read_small(&self, _: &str, _: u64) -> Result<(Object, Vec<u8>), RemoteError> {
        match self.0 {}
    }

    /// Removes an object.
    ///
    /// # Errors
    /// None: there are no stores.
    pub fn delete(&self, _: &str) -> Result<(), RemoteError> {
        match self.0 {}
    }
}
