//! Memory that a collective works on: slices of host memory with their element type, and buffers that own some.

use crate::{Element, ElementType};
use std::ops::Range;

/// Host memory that a collective only reads.
#[derive(Debug, Clone, Copy)]
pub struct HostSlice<'a> {
    pub(crate) element: ElementType,
    pub(crate) bytes: &'a [u8],
}

/// Host memory that a collective reads and writes.
#[derive(Debug)]
pub struct HostSliceMut<'a> {
    pub(crate) element: ElementType,
    pub(crate) bytes: &'a mut [u8],
}

impl<'a> HostSliceMut<'a> {
    /// Turns the memory into one that is only read.
    pub fn into_slice(self) -> HostSlice<'a> {
        HostSlice { element: self.element, bytes: self.bytes }
    }

    /// The first `count` elements and the others; fewer where there are no more.
    pub(crate) fn split(self, count: usize) -> (HostSliceMut<'a>, HostSliceMut<'a>) {
        let HostSliceMut { element, bytes } = self;
        let (first, rest) = bytes.split_at_mut((count * element.size()).min(bytes.len()));
        (HostSliceMut { element, bytes: first }, HostSliceMut { element, bytes: rest })
    }

    /// Returns the memory for reading.
    pub(crate) fn as_slice(&self) -> HostSlice<'_> {
        HostSlice { element: self.element, bytes: self.bytes }
    }
}

impl HostSlice<'_> {
    /// Number of elements.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() / self.element.size()
    }
}

impl<'a, E: Element> From<&'a [E]> for HostSlice<'a> {
    fn from(values: &'a [E]) -> HostSlice<'a> {
        HostSlice { element: E::TYPE, bytes: E::bytes(values) }
    }
}

impl<'a, E: Element> From<&'a Vec<E>> for HostSlice<'a> {
    fn from(values: &'a Vec<E>) -> HostSlice<'a> {
        values.as_slice().into()
    }
}

impl<'a, E: Element, const N: usize> From<&'a [E; N]> for HostSlice<'a> {
    fn from(values: &'a [E; N]) -> HostSlice<'a> {
        values.as_slice().into()
    }
}

impl<'a, E: Element> From<&'a mut [E]> for HostSliceMut<'a> {
    fn from(values: &'a mut [E]) -> HostSliceMut<'a> {
        HostSliceMut { element: E::TYPE, bytes: E::bytes_mut(values) }
    }
}

impl<'a, E: Element> From<&'a mut Vec<E>> for HostSliceMut<'a> {
    fn from(values: &'a mut Vec<E>) -> HostSliceMut<'a> {
        values.as_mut_slice().into()
    }
}

impl<'a, E: Element, const N: usize> From<&'a mut [E; N]> for HostSliceMut<'a> {
    fn from(values: &'a mut [E; N]) -> HostSliceMut<'a> {
        values.as_mut_slice().into()
    }
}

/// Memory of one collective.
#[derive(Debug)]
pub enum Memory<'a> {
    /// No memory: a barrier.
    Empty,
    /// Values that a send reads.
    Read(HostSlice<'a>),
    /// Values that are changed in place, or received.
    InPlace(HostSliceMut<'a>),
    /// The two sides of an all-to-all.
    Exchange {
        /// Values for all ranks, in their order.
        send: HostSlice<'a>,
        /// Values from all ranks, in their order.
        receive: HostSliceMut<'a>,
    },
}

/// Host memory for values of one element type. It keeps its memory when it shrinks, or changes its type.
#[derive(Debug, Clone)]
pub struct HostBuffer {
    element: ElementType,
    len: usize,
    /// At least those of the elements.
    words: Vec<u32>,
    /// Words that the buffer will hold at least once it holds any.
    planned: usize,
}

impl PartialEq for HostBuffer {
    /// Whether both hold the same elements, bit by bit.
    fn eq(&self, other: &HostBuffer) -> bool {
        let held = |buffer: &HostBuffer| (buffer.element, buffer.len);
        held(self) == held(other)
            && self.bytes(self.element, 0..self.len) == other.bytes(other.element, 0..other.len)
    }
}

impl HostBuffer {
    /// Returns an empty buffer with a capacity of `capacity` elements.
    pub fn with_capacity(element: ElementType, capacity: usize) -> HostBuffer {
        let mut buffer = HostBuffer::planned(element, capacity);
        buffer.allocate();
        buffer
    }

    /// Returns an empty buffer that takes no memory before [`HostBuffer::allocate`] or its first use, and then that of `capacity` elements:
    /// for a dry run, which only counts them.
    pub fn planned(element: ElementType, capacity: usize) -> HostBuffer {
        let planned = (capacity * element.size()).div_ceil(4);
        HostBuffer { element, len: 0, words: Vec::new(), planned }
    }

    /// Allocates what is planned.
    pub fn allocate(&mut self) {
        if self.words.capacity() < self.planned {
            self.words.reserve_exact(self.planned - self.words.len());
        }
    }

    /// A buffer with a copy of `values`.
    pub fn of<E: Element>(values: &[E]) -> HostBuffer {
        let mut buffer = HostBuffer::with_capacity(E::TYPE, values.len());
        buffer.reset(E::TYPE, values.len());
        buffer.as_mut_slice().copy_from_slice(values);
        buffer
    }

    /// Makes the buffer hold `len` elements of type `element`, whose values are unspecified.
    pub fn reset(&mut self, element: ElementType, len: usize) {
        (self.element, self.len) = (element, len);
        self.allocate();
        let words = (len * element.size()).div_ceil(4);
        // Words beyond a shorter collective stay: nothing is cleared again for the next long one.
        if self.words.len() < words {
            self.words.resize(words, 0);
        }
    }

    /// Type of the elements.
    pub fn element(&self) -> ElementType {
        self.element
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there is no element.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of memory that the buffer holds, or will hold.
    pub fn capacity_bytes(&self) -> u64 {
        4 * self.words.capacity().max(self.planned) as u64
    }

    /// The elements.
    ///
    /// # Panics
    /// If they are of another type.
    pub fn as_slice<E: Element>(&self) -> &[E] {
        assert_eq!(self.element, E::TYPE, "elements are read as another type than they have");
        E::of_words(&self.words, self.len)
    }

    /// The elements, to be changed.
    ///
    /// # Panics
    /// If they are of another type.
    pub fn as_mut_slice<E: Element>(&mut self) -> &mut [E] {
        assert_eq!(self.element, E::TYPE, "elements are read as another type than they have");
        E::of_words_mut(&mut self.words, self.len)
    }

    /// The bytes of some elements.
    ///
    /// # Panics
    /// If they are of another type, or there are fewer.
    pub(crate) fn bytes(&self, element: ElementType, of: Range<usize>) -> &[u8] {
        assert_eq!(self.element, element, "elements are read as another type than they have");
        &bytemuck::cast_slice(&self.words)[of.start * element.size()..of.end * element.size()]
    }

    /// The bytes of some elements, to be changed.
    ///
    /// # Panics
    /// As [`HostBuffer::bytes`].
    pub(crate) fn bytes_mut(&mut self, element: ElementType, of: Range<usize>) -> &mut [u8] {
        assert_eq!(self.element, element, "elements are read as another type than they have");
        &mut bytemuck::cast_slice_mut(&mut self.words)[of.start * element.size()..of.end * element.size()]
    }

    /// The elements as memory of a collective.
    pub fn lend(&mut self) -> HostSliceMut<'_> {
        let bytes = &mut bytemuck::cast_slice_mut(&mut self.words)[..self.len * self.element.size()];
        HostSliceMut { element: self.element, bytes }
    }
}
