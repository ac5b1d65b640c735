//! What each operator makes of operands that are cut over the tensor axis, and what it must not be given.

use super::held::{Held, Memory};
use bessemer_tensor::View;
use bessemer_tensor::op::Op;

/// One operator being checked.
struct Rule<'a> {
    memory: &'a mut Memory,
    op: &'static str,
}

type Checked = Result<(), String>;

impl Rule<'_> {
    fn held(&self, view: &View) -> Result<Option<Held>, String> {
        self.memory.get(view).map_err(|e| format!("{}: {e}", self.op))
    }

    /// What an operand holds; values that fit anything count as the same everywhere.
    fn of(&self, view: &View) -> Result<Held, String> {
        Ok(self.held(view)?.unwrap_or(Held::Same))
    }

    fn refuse(&self, operand: &str, view: &View, found: Held, wanted: &str) -> String {
        format!(
            "{}: {operand} ({}) is {}, and is taken for {wanted}: {} must come first",
            self.op,
            self.memory.name(view),
            found.text(),
            found.remedy()
        )
    }

    fn expect(&self, operand: &str, view: &View, wanted: &[Held]) -> Result<Held, String> {
        let found = self.of(view)?;
        if wanted.contains(&found) {
            return Ok(found);
        }
        let wanted: Vec<_> = wanted.iter().map(|w| w.text()).collect();
        Err(self.refuse(operand, view, found, &wanted.join(" or ")))
    }

    /// Operands that must lie alike; what they hold.
    fn alike(&self, operands: &[(&str, &View)]) -> Result<Option<Held>, String> {
        let mut found: Option<(Held, &str)> = None;
        for (name, view) in operands {
            let Some(held) = self.held(view)? else { continue };
            match found {
                Some((first, _)) if first != held => {
                    let (name, view, held) = if first == Held::Partial {
                        let (name, view) = operands[0];
                        (name, view, first)
                    } else {
                        (*name, *view, held)
                    };
                    return Err(self.refuse(name, view, held, "lying as the operator's other operands"));
                }
                _ => found = Some((held, name)),
            }
        }
        Ok(found.map(|f| f.0))
    }

    /// As [`Rule::alike`], for an operator that is not linear.
    fn whole_values(&self, operands: &[(&str, &View)]) -> Result<Option<Held>, String> {
        for (name, view) in operands {
            if self.held(view)? == Some(Held::Partial) {
                return Err(self.refuse(name, view, Held::Partial, "values"));
            }
        }
        self.alike(operands)
    }

    fn put(&mut self, view: &View, held: Option<Held>) {
        self.memory.set(view, held);
    }

    /// A result that may be added to what is there.
    fn add(&mut self, operand: &str, view: &View, held: Held, accumulate: bool) -> Checked {
        if accumulate && self.held(view)?.is_some_and(|old| old != held) {
            return Err(self.refuse(operand, view, self.of(view)?, held.text()));
        }
        self.put(view, Some(held));
        Ok(())
    }

    /// `y = x W^T`: what it holds.
    fn product(&self, x: &View, weight: &View) -> Result<Held, String> {
        match self.of(weight)? {
            // Outputs are cut.
            Held::Rows => self.expect("x", x, &[Held::Same]).map(|_| Held::Columns),
            // Inputs are cut.
            Held::Columns => self.expect("x", x, &[Held::Columns]).map(|_| Held::Partial),
            Held::Same => self.expect("x", x, &[Held::Same, Held::Rows]),
            Held::Partial => Err(self.refuse("weight", weight, Held::Partial, "values")),
        }
    }

    /// `dx = dy W`: what it holds.
    fn product_backward(&self, dy: &View, weight: &View) -> Result<Held, String> {
        match self.of(weight)? {
            Held::Rows => self.expect("dy", dy, &[Held::Columns]).map(|_| Held::Partial),
            Held::Columns => self.expect("dy", dy, &[Held::Same]).map(|_| Held::Columns),
            Held::Same => self.expect("dy", dy, &[Held::Same, Held::Rows]),
            Held::Partial => Err(self.refuse("weight", weight, Held::Partial, "values")),
        }
    }

    /// `dW = dy^T x`: what it and the gradient of the bias hold.
    fn outer(&self, x: &View, dy: &View) -> Result<(Held, Held), String> {
        match (self.of(x)?, self.of(dy)?) {
            (Held::Same, Held::Same) => Ok((Held::Same, Held::Same)),
            (Held::Same, Held::Columns) => Ok((Held::Rows, Held::Columns)),
            (Held::Columns, Held::Same) => Ok((Held::Columns, Held::Same)),
            (Held::Rows, Held::Rows) => Ok((Held::Partial, Held::Partial)),
            (Held::Partial, _) => Err(self.refuse("x", x, Held::Partial, "values")),
            (_, found) => Err(self.refuse("dy", dy, found, "lying as x")),
        }
    }

    /// Gradients of a weight that every rank has: complete, or a term of a sum where each rank saw other rows or heads.
    fn sum_over(rows: Held) -> Held {
        if rows == Held::Same { Held::Same } else { Held::Partial }
    }
}

/// Checks an operator and notes what its results hold.
///
/// # Errors
/// An operand, by its buffer's name, that is consumed as what it is not.
pub(crate) fn apply(memory: &mut Memory, op: &Op) -> Checked {
    let mut r = Rule { memory, op: op.name() };
    match op {
        Op::Fill(o) => r.put(&o.dst, None),
        Op::Embedding(o) => {
            let held = match r.of(&o.table)? {
                Held::Rows => Held::Partial,
                held => held,
            };
            if let Some(p) = o.positions.filter(|_| held == Held::Partial) {
                return Err(r.refuse("table", &o.table, Held::Rows, r.of(&p.table)?.text()));
            }
            // Rows of a shared table lie as whoever asks for them: that is known where they are added.
            r.put(&o.out, (held == Held::Partial).then_some(held));
        }
        Op::EmbeddingBackward(o) => {
            let dout = r.expect("dout", &o.dout, &[Held::Same, Held::Rows])?;
            // Zeros, which the operator adds to, fit anything; that the table is cut is told by the operator.
            let held = match o.portion {
                Some(_) => r.expect("dout", &o.dout, &[Held::Same]).map(|_| Held::Rows)?,
                None => Rule::sum_over(dout),
            };
            r.put(&o.dtable, Some(held));
            if let Some(p) = o.positions {
                r.put(&p.table, Some(Rule::sum_over(dout)));
            }
        }
        Op::Linear(o) => {
            let held = r.product(&o.x, &o.weight)?;
            if o.activation.is_some() && held == Held::Partial {
                return Err(r.refuse("the product", &o.out, held, "values"));
            }
            if let Some(residual) = &o.residual
                && r.of(residual)? != held
            {
                return Err(r.refuse("the product", &o.out, held, r.of(residual)?.text()));
            }
            if let Some((_, pre)) = &o.activation {
                r.put(pre, Some(held));
            }
            r.put(&o.out, Some(held));
        }
        Op::LinearBackwardInput(o) => {
            let held = r.product_backward(&o.dy, &o.weight)?;
            if let Some((_, pre)) = &o.activation {
                r.expect("pre", pre, &[held])?;
            }
            r.add("dx", &o.dx, held, o.accumulate)?;
        }
        Op::LinearBackwardWeight(o) => {
            let (weight, bias) = r.outer(&o.x, &o.dy)?;
            r.add("dweight", &o.dweight, weight, o.accumulate)?;
            if let Some(dbias) = &o.dbias {
                r.add("dbias", dbias, bias, o.accumulate)?;
            }
        }
        Op::LogitSums(o) => {
            r.expect("x", &o.x, &[Held::Same])?;
            let held = if r.of(&o.weight)? == Held::Rows { Held::Partial } else { Held::Same };
            r.put(&o.lse, Some(held));
            r.put(&o.target_logit, Some(held));
        }
        Op::LinearCrossEntropyPortion(o) => {
            for (name, view) in [("x", &o.x), ("lse", &o.lse), ("target_logit", &o.target_logit)] {
                r.expect(name, view, &[Held::Same])?;
            }
            r.put(&o.loss, Some(Held::Same));
            if let Some(b) = &o.backward {
                let cut = r.of(&o.weight)? == Held::Rows;
                r.put(&b.dx, Some(if cut { Held::Partial } else { Held::Same }));
                r.add("dweight", &b.dweight, if cut { Held::Rows } else { Held::Same }, b.accumulate)?;
            }
        }
        Op::LinearCrossEntropy(o) => {
            r.expect("x", &o.x, &[Held::Same])?;
            // Taking a part of the vocabulary for all of it is wrong by log t, without any other sign.
            r.expect("weight", &o.weight, &[Held::Same])?;
            r.put(&o.loss, Some(Held::Same));
            if let Some(b) = &o.backward {
                r.put(&b.dx, Some(Held::Same));
                r.add("dweight", &b.dweight, Held::Same, b.accumulate)?;
            }
        }
        _ => return element_wise(&mut r, op),
    }
    Ok(())
}

/// Operators that work on rows, heads or elements by themselves.
fn element_wise(r: &mut Rule<'_>, op: &Op) -> Checked {
    match op {
        Op::Add(o) => {
            let held = r.alike(&[("a", &o.a), ("b", &o.b)])?;
            r.put(&o.out, held);
        }
        Op::Scale(o) => {
            let held = r.held(&o.x)?;
            r.put(&o.out, held);
        }
        Op::Copy(o) => {
            let held = r.held(&o.src)?;
            r.put(&o.dst, held);
        }
        Op::Dropout(o) => {
            let held = r.whole_values(&[("x", &o.x)])?;
            r.put(&o.out, held);
        }
        Op::Activation(o) => {
            let held = r.whole_values(&[("x", &o.x)])?;
            r.put(&o.out, held);
        }
        Op::Gated(o) => {
            let held = r.whole_values(&[("gate", &o.gate), ("up", &o.up)])?;
            r.put(&o.out, held);
        }
        Op::GatedBackward(o) => {
            let held = r.whole_values(&[("dout", &o.dout), ("gate", &o.gate), ("up", &o.up)])?;
            r.put(&o.dgate, held);
            r.put(&o.dup, held);
        }
        Op::Rope(o) => {
            let held = r.whole_values(&[("x", &o.x)])?;
            r.put(&o.x, held);
        }
        Op::Norm(o) => {
            let held = r.whole_values(&[("x", &o.x)])?;
            r.put(&o.out, held);
        }
        Op::NormBackward(o) => {
            let held = r.whole_values(&[("dout", &o.dout), ("x", &o.x)])?.unwrap_or(Held::Same);
            r.add("dx", &o.dx, held, o.accumulate_dx)?;
            let sum = Rule::sum_over(held);
            r.add("dweight", &o.dweight, sum, o.accumulate)?;
            if let Some(dbias) = &o.dbias {
                r.add("dbias", dbias, sum, o.accumulate)?;
            }
        }
        Op::Attention(o) => {
            let held = r.whole_values(&[("q", &o.q), ("k", &o.k), ("v", &o.v)])?;
            r.put(&o.out, held);
        }
        Op::AttentionBackward(o) => {
            let operands = [("dout", &o.dout), ("q", &o.q), ("k", &o.k), ("v", &o.v), ("out", &o.out)];
            let held = r.whole_values(&operands)?;
            for view in [&o.dq, &o.dk, &o.dv] {
                r.put(view, held);
            }
        }
        // The rest belongs to the optimizer, which sees complete gradients ([`super::program`] checks that).
        _ => {}
    }
    Ok(())
}
