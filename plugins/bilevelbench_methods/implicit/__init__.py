"""Methods that solve `H v = f_y` for the implicit gradient: Hessian-vector products."""
