//! Bounds on the values that operators and literals make.
//!
//! minijinja repeats, joins and slices lists lazily and takes no steps for it, and its compiler evaluates constants. A filter is
//! therefore written around each expression whose value may have more items than its operands: `(a * b)` becomes
//! `(a * b)|__repeated`. The positions are those of minijinja's parser. Templates cannot replace a filter.

use crate::size::{ITEMS_A_STEP, bounded};
use minijinja::machinery::ast::{BinOpKind, Call, CallArg, Expr, Macro, Stmt, UnaryOpKind};
use minijinja::machinery::{Span, parse};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Value, ValueKind};
use minijinja::{Environment, Error, State};

/// Filter around a product.
pub(crate) const REPEATED: &str = "__repeated";
/// Filter around a sum, a literal and a call.
pub(crate) const BOUNDED: &str = "__bounded";
/// Filter around a slice.
pub(crate) const SLICED: &str = "__sliced";

/// Filters that may put an argument into their value many times.
const REPEATING: [&str; 4] = ["batch", "groupby", "map", "slice"];

/// Most terms of a sum without a filter: minijinja joins lists lazily up to a depth, and then makes a list of them.
const MOST_TERMS: usize = 16;

/// Terms, items and arguments beyond the first that the sums, literals and calls of one expression may have without a filter: a
/// filter counts the items of a value each time, and `all + [message]` is common in loops.
const MOST_FREE: usize = 8;

/// Puts the filters into an environment.
pub(crate) fn add(environment: &mut Environment<'static>) {
    environment.add_filter(BOUNDED, |state: &State<'_, '_>, value: Value| {
        bounded(state, &value)?;
        Ok::<_, Error>(value)
    });
    environment.add_filter(REPEATED, |state: &State<'_, '_>, value: Value| {
        bounded(state, &value)?;
        evaluated(state, value)
    });
    environment.add_filter(SLICED, evaluated);
}

/// A lazy value with its items: lazy slices and products of others would nest in each other. The kind of the value is kept.
fn evaluated(state: &State<'_, '_>, value: Value) -> Result<Value, Error> {
    if value.kind() != ValueKind::Iterable {
        return Ok(value);
    }
    let mut items = Vec::new();
    for item in value.try_iter()? {
        if (items.len() as u64).is_multiple_of(ITEMS_A_STEP) {
            state.consume_fuel(1)?;
        }
        items.push(item);
    }
    Ok(Value::make_object_iterable(items, |items| Box::new(items.iter().cloned())))
}

/// The template with filters around its expressions whose values may grow.
///
/// # Errors
/// The syntax.
pub(crate) fn with_bounds(source: &str, name: &str, syntax: &SyntaxConfig) -> Result<String, Error> {
    let mut growth = Growth::default();
    growth.statement(&parse(source, name, syntax.clone())?);
    // Stable: inner expressions end before outer ones.
    growth.insertions.sort_by_key(|insertion| insertion.offset);
    let (mut bounded, mut copied) = (String::with_capacity(source.len()), 0);
    for Insertion { offset, text } in growth.insertions {
        bounded.push_str(source.get(copied..offset).unwrap_or_default());
        bounded.push_str(&text);
        copied = offset;
    }
    bounded.push_str(source.get(copied..).unwrap_or_default());
    Ok(bounded)
}

/// Text that is written into a template.
struct Insertion {
    offset: usize,
    text: String,
}

/// Values that an expression may have, if it has one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Values {
    Text,
    /// No list. A number, except for constants of other types.
    Scalar,
    /// A sum or a literal without a filter, with the number of its terms or items.
    Sum(usize),
    Any,
}

/// Operator of which an expression is an operand.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Parent {
    Add,
    /// `*`, or an operator that refuses lists.
    Multiply,
    Other,
}

#[derive(Default)]
struct Growth {
    insertions: Vec<Insertion>,
    /// Terms, items and arguments that the expression may still have without a filter.
    free: usize,
}

impl Growth {
    fn insert(&mut self, offset: u32, text: String) {
        self.insertions.push(Insertion { offset: offset as usize, text });
    }

    fn statements(&mut self, statements: &[Stmt<'_>]) {
        statements.iter().for_each(|statement| self.statement(statement));
    }

    fn statement(&mut self, statement: &Stmt<'_>) {
        match statement {
            Stmt::Template(template) => self.statements(&template.children),
            Stmt::EmitExpr(emit) => self.whole(&emit.expr),
            Stmt::EmitRaw(_) | Stmt::Continue(_) | Stmt::Break(_) => {}
            Stmt::ForLoop(each) => {
                self.whole(&each.iter);
                each.filter_expr.iter().for_each(|expr| self.whole(expr));
                self.statements(&each.body);
                self.statements(&each.else_body);
            }
            Stmt::IfCond(condition) => {
                self.whole(&condition.expr);
                self.statements(&condition.true_body);
                self.statements(&condition.false_body);
            }
            Stmt::WithBlock(with) => {
                with.assignments.iter().for_each(|(_, expr)| self.whole(expr));
                self.statements(&with.body);
            }
            // The variables of the tuple are checked. One without parentheses has no position.
            Stmt::Set(set) => match &set.expr {
                Expr::Tuple(tuple) => tuple.items.iter().for_each(|item| self.whole(item)),
                expr => self.whole(expr),
            },
            Stmt::SetBlock(set) => {
                set.filter.iter().for_each(|filter| self.whole(filter));
                self.statements(&set.body);
            }
            Stmt::AutoEscape(escape) => {
                self.whole(&escape.enabled);
                self.statements(&escape.body);
            }
            Stmt::FilterBlock(block) => {
                self.whole(&block.filter);
                self.statements(&block.body);
            }
            Stmt::Macro(declared) => self.declared(declared),
            Stmt::CallBlock(block) => {
                self.free = MOST_FREE;
                let _ = self.call(&block.call);
                self.declared(&block.macro_decl);
            }
            Stmt::Do(call) => {
                self.free = MOST_FREE;
                let _ = self.call(&call.call);
            }
        }
    }

    fn declared(&mut self, declared: &Macro<'_>) {
        declared.defaults.iter().for_each(|expr| self.whole(expr));
        self.statements(&declared.body);
    }

    /// The number of arguments that may be large.
    fn call(&mut self, call: &Call<'_>) -> usize {
        self.plain(&call.expr);
        self.arguments(&call.args)
    }

    fn arguments(&mut self, arguments: &[CallArg<'_>]) -> usize {
        let may_be_large = |argument: &&CallArg<'_>| match argument {
            CallArg::Pos(expr)
            | CallArg::Kwarg(_, expr)
            | CallArg::PosSplat(expr)
            | CallArg::KwargSplat(expr) => self.may_be_large(expr),
        };
        arguments.iter().filter(may_be_large).count()
    }

    /// Visits an expression. A constant is as large as the template writes it.
    fn may_be_large(&mut self, expr: &Expr<'_>) -> bool {
        self.expression(expr, Parent::Other) != Values::Scalar && !matches!(expr, Expr::Const(_))
    }

    /// An expression that is no part of another.
    fn whole(&mut self, expr: &Expr<'_>) {
        self.free = MOST_FREE;
        self.plain(expr);
    }

    fn plain(&mut self, expr: &Expr<'_>) {
        self.expression(expr, Parent::Other);
    }

    fn expression(&mut self, expr: &Expr<'_>, parent: Parent) -> Values {
        match expr {
            Expr::Var(_) => Values::Any,
            Expr::Const(constant) => match constant.value.kind() {
                ValueKind::String => Values::Text,
                _ => Values::Scalar,
            },
            Expr::Slice(slice) => {
                self.plain(&slice.expr);
                for expr in [&slice.start, &slice.stop, &slice.step].into_iter().flatten() {
                    self.plain(expr);
                }
                self.insert(begin(expr), "(".into());
                self.insert(slice.span().end_offset, format!("|{SLICED})"));
                Values::Any
            }
            Expr::UnaryOp(operation) => {
                let parent = match operation.op {
                    UnaryOpKind::Neg => Parent::Multiply,
                    UnaryOpKind::Not => Parent::Other,
                };
                self.expression(&operation.expr, parent);
                Values::Scalar
            }
            Expr::BinOp(operation) => {
                let (operator, span) = (operation.op, operation.span());
                self.operation(operator, span, &operation.left, &operation.right, parent)
            }
            Expr::Compare(compare) => {
                self.plain(&compare.expr);
                compare.ops.iter().for_each(|operation| self.plain(&operation.expr));
                Values::Scalar
            }
            Expr::IfExpr(condition) => {
                self.plain(&condition.test_expr);
                self.plain(&condition.true_expr);
                condition.false_expr.iter().for_each(|expr| self.plain(expr));
                Values::Any
            }
            Expr::Filter(filter) => {
                filter.expr.iter().for_each(|expr| self.plain(expr));
                self.arguments(&filter.args);
                if REPEATING.contains(&filter.name) {
                    self.insert(filter.span().end_offset, format!("|{BOUNDED}"));
                }
                Values::Any
            }
            Expr::Test(test) => {
                self.plain(&test.expr);
                test.args.iter().for_each(|argument| self.test_argument(argument));
                Values::Scalar
            }
            Expr::GetAttr(attribute) => {
                self.plain(&attribute.expr);
                Values::Any
            }
            Expr::GetItem(item) => {
                self.plain(&item.expr);
                self.plain(&item.subscript_expr);
                Values::Any
            }
            Expr::Call(call) => {
                let large = self.call(call);
                if large > 1 && !self.is_free(large) {
                    self.insert(begin(expr), "(".into());
                    self.insert(call.span().end_offset, format!("|{BOUNDED})"));
                }
                Values::Any
            }
            Expr::List(list) => self.literal(&list.items, &[], list.span(), parent),
            Expr::Tuple(tuple) => self.literal(&tuple.items, &[], tuple.span(), parent),
            Expr::Map(map) => self.literal(&map.keys, &map.values, map.span(), parent),
        }
    }

    fn operation(
        &mut self,
        operator: BinOpKind,
        span: Span,
        left: &Expr<'_>,
        right: &Expr<'_>,
        parent: Parent,
    ) -> Values {
        use BinOpKind::{Add, Concat, Div, FloorDiv, Mul, Pow, Rem, ScAnd, ScOr, Sub};
        let operands = match operator {
            Add => Parent::Add,
            Mul | Sub | Div | FloorDiv | Rem | Pow => Parent::Multiply,
            _ => Parent::Other,
        };
        let left = self.expression(left, operands);
        let right = self.expression(right, operands);
        match operator {
            // A list goes only with a number, and a text too.
            Mul if left == Values::Text || right == Values::Text => Values::Text,
            Mul if left == Values::Scalar && right == Values::Scalar => Values::Scalar,
            Mul => {
                if parent != Parent::Multiply {
                    self.wrap(span, REPEATED);
                }
                Values::Any
            }
            // A list goes only with a list.
            Add if left == Values::Text || right == Values::Text => Values::Text,
            Add if left == Values::Scalar || right == Values::Scalar => Values::Scalar,
            Add => {
                let terms = |values| if let Values::Sum(terms) = values { terms } else { 1 };
                let terms = terms(left) + terms(right);
                if parent != Parent::Other && terms < MOST_TERMS {
                    return Values::Sum(terms);
                }
                if terms >= MOST_TERMS || !self.is_free(terms) {
                    self.wrap(span, BOUNDED);
                }
                Values::Any
            }
            Concat => Values::Text,
            ScAnd | ScOr => Values::Any,
            _ => Values::Scalar,
        }
    }

    /// Whether a sum or a literal of so many values needs no filter.
    fn is_free(&mut self, values: usize) -> bool {
        let left = self.free.checked_sub(values - 1);
        self.free = left.unwrap_or(self.free);
        left.is_some()
    }

    /// A literal with several items that are not constant may contain a large value as often.
    fn literal(&mut self, items: &[Expr<'_>], more: &[Expr<'_>], span: Span, parent: Parent) -> Values {
        let large = items.iter().chain(more).filter(|item| self.may_be_large(item)).count();
        if large > 1 && parent == Parent::Other && !self.is_free(large) {
            self.insert(span.start_offset, "(".into());
            self.insert(span.end_offset, format!("|{BOUNDED})"));
        }
        if parent == Parent::Add { Values::Sum(large.max(1)) } else { Values::Any }
    }

    fn wrap(&mut self, span: Span, filter: &str) {
        self.insert(span.start_offset, "(".into());
        self.insert(span.end_offset, format!(")|{filter}"));
    }

    /// Without parentheses, as in `x is in [a, b].c`, a parenthesis after the name of the test would begin all of its arguments.
    fn test_argument(&mut self, argument: &CallArg<'_>) {
        let known = self.insertions.len();
        self.arguments(std::slice::from_ref(argument));
        let CallArg::Pos(expr @ (Expr::GetAttr(_) | Expr::GetItem(_) | Expr::Call(_))) = argument else {
            return;
        };
        let begin = begin(expr);
        if self.insertions[known..].iter().any(|insertion| insertion.offset == begin as usize) {
            self.insert(begin, "(".into());
            self.insert(expr.span().end_offset, ")".into());
        }
    }
}

/// Position at which an expression with attributes, subscripts or arguments begins. The parser gives that of its first one, and
/// for each further one the position of the one before.
fn begin(mut expr: &Expr<'_>) -> u32 {
    loop {
        let inner = match expr {
            Expr::GetAttr(attribute) => &attribute.expr,
            Expr::GetItem(item) => &item.expr,
            Expr::Slice(slice) => &slice.expr,
            Expr::Call(call) => &call.expr,
            _ => return expr.span().start_offset,
        };
        if expr.span().start_offset <= inner.span().start_offset {
            return expr.span().start_offset;
        }
        expr = inner;
    }
}
