"""Methods that replace the lower problem by a penalty: gradients only."""
